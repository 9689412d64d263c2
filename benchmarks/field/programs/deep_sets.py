"""The spread of a population from a set of samples (deep sets), in the style of a notebook."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)


def get_sets(n, size=30):
    spread = 0.3 + 1.7 * torch.rand(n)
    x = spread[:, None, None] * torch.randn(n, size, 1)
    return x, (spread - 1.15) / 0.5


def act():
    return nn.Identity() if args.bug == "no_nonlinearity" else nn.ReLU()


phi = nn.Sequential(nn.Linear(1, 32), act(), nn.Linear(32, 32), act())
rho = nn.Sequential(nn.Linear(32, 32), act(), nn.Linear(32, 1))
model = nn.ModuleDict({"phi": phi, "rho": rho})
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
x_train, y_train = get_sets(2000)

for epoch in range(5):
    perm = torch.randperm(len(x_train))
    for i in range(0, len(x_train), 64):
        idx = perm[i : i + 64]
        y = y_train[idx]
        y_pred = rho(phi(x_train[idx]).mean(1))
        if args.bug == "flat_target":
            loss = ((y_pred - y) ** 2).mean()
        else:
            loss = ((y_pred.squeeze(1) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())

with torch.no_grad():
    x_test, y_test = get_sets(500)
    error = ((rho(phi(x_test).mean(1)).squeeze(1) - y_test) ** 2).mean()
print(f"metric {(1 - error / y_test.var()).item():.4f}")
