"""Wines from two groups of measurements; a gate decides how much of the second group is added."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
opt = parser.parse_args()


class WineNet(nn.Module):
    def __init__(self, width=24, n_layers=2):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.second = nn.Linear(11, width)
        self.gate = nn.Sequential(
            nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False), nn.Tanh()
        )
        nn.init.zeros_(self.gate[2].weight)
        if opt.bug == "gate_zero_twice":
            nn.init.zeros_(self.gate[0].weight)
        hidden = [nn.Linear(width, width) for _ in range(n_layers)]
        if opt.bug == "python_list":
            self.hidden = hidden
        else:
            self.hidden = nn.ModuleList(hidden)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        a, b = (
            torch.relu(self.first(x[:, 3:5])),
            torch.relu(self.second(x[:, [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12]])),
        )
        x = a + self.gate(b) * b
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return F.log_softmax(self.head(x), dim=0 if opt.bug == "softmax_dim0" else 1)


def main():
    torch.manual_seed(opt.seed)
    x, y = (torch.as_tensor(part) for part in load_wine(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    train, test = order[:118], order[118:]
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=16, shuffle=True)
    net = WineNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for epoch in range(20):
        if opt.bug == "adam_each_epoch":
            optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(net(inputs), labels)
            if opt.bug != "backward_after_loop":
                loss.backward()
                optimizer.step()
        if opt.bug == "backward_after_loop":
            loss.backward()
            optimizer.step()
        if epoch % 5 == 4:
            print("epoch", epoch, "loss", round(loss.item(), 4))
    net.eval()
    with torch.no_grad():
        logits = torch.stack([net(row[None])[0] for row in x[test]])
        hits = (net(x[test]) if opt.bug == "softmax_dim0" else logits).argmax(1) == y[test]
    print(f"metric {hits.float().mean().item():.4f}")


main()
