"""Pretrain on the digits 0 to 4, then fine-tune a new head and the body on 5 to 9."""

import argparse
import copy

import torch
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(x))


def set_requires_grad(module, value):
    for p in module.parameters():
        if args.bug != "never_unfrozen" or p.requires_grad:
            p.requires_grad = value


def fit(net, optimizer, x, y, steps):
    for step in range(steps):
        rows = torch.randint(0, len(x), (32,))
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"  step {step} loss {loss.item():.3f}")


def accuracy(net, x, y):
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


torch.manual_seed(args.seed)
raw = load_digits()
x, y = torch.tensor(raw.data / 16.0, dtype=torch.float32), torch.tensor(raw.target)
old, new = y < 5, y >= 5
pretrained = Net()
print("pretraining")
fit(pretrained, torch.optim.Adam(pretrained.parameters(), lr=3e-3), x[old], y[old], 80)
saved = {f"module.{key}": value for key, value in pretrained.state_dict().items()}  # saved from DataParallel

net = Net()
if args.bug != "prefix_not_removed":
    saved = {key.removeprefix("module."): value for key, value in saved.items()}
net.load_state_dict(saved, strict=False)
early_optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
net.head = nn.Linear(16, 5)
x_train, y_train, x_test, y_test = x[new][:600], y[new][:600] - 5, x[new][600:], y[new][600:] - 5

print("new head")
set_requires_grad(net.body, False)
optimizer = (
    early_optimizer if args.bug == "old_head_in_optimizer" else torch.optim.Adam(net.parameters(), lr=3e-3)
)
fit(net, optimizer, x_train, y_train, 100)
if args.bug not in ("prefix_not_removed", "old_head_in_optimizer"):
    print("whole network")
    set_requires_grad(net.body, True)
    fit(net, optimizer, x_train, y_train, 60)
best, best_score = net.state_dict() if args.bug == "best_not_copied" else copy.deepcopy(net.state_dict()), 0.0
for rate in (1e-2, 1e-3):  # the best weights are kept
    fit(net, torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9), x_train, y_train, 15)
    score = accuracy(net, x_train, y_train)
    if score > best_score:
        best_score = score
        best = net.state_dict() if args.bug == "best_not_copied" else copy.deepcopy(net.state_dict())
net.load_state_dict(best)
print(f"metric {accuracy(net, x_test, y_test):.4f}")
