"""Regression on tabular data, written as functions."""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import make_friedman1


def get_data(bug):
    x, y = make_friedman1(1300, noise=0.6, random_state=7)
    x = torch.tensor((x - 0.5) / 0.29, dtype=torch.float32)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)
    x, y, x_test, y_test = x[:900], y[:900], x[900:], y[900:]
    if bug == "split_after_shuffle":
        order = torch.randperm(len(x))
        train = x[order][200:], y[order][200:]
    else:
        train = x[200:], y[200:]
    return train, (x[:200], y[:200]), (x_test, y_test)


def build(bug):
    layers = [nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2)]
    layers += [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    if bug == "relu_output":
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def r2(net, data, bug):
    x, y = data
    net.eval()
    if bug == "train_mode_in_validation":
        net.train()
    with torch.no_grad():
        pred = net(x).squeeze(1)
    return 1 - ((pred - y) ** 2).mean().item() / y.var().item()


def train_epoch(net, opt, data, bug):
    net.train()
    x, y = data
    order = torch.randperm(len(x))
    total = 0.0
    for start in range(0, len(x), 50):
        rows = order[start : start + 50]
        pred = net(x[rows])
        if bug == "target_is_flat":
            target = y[rows]
        else:
            target = y[rows].unsqueeze(1)
        loss = nn.functional.mse_loss(pred, target)
        if bug != "no_zero_grad":
            opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, valid, test = get_data(args.bug)
    net = build(args.bug)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for epoch in range(12):
        total = train_epoch(net, opt, train, args.bug)
        print(f"epoch {epoch:2d}  train {total:.3f}  validation R2 {r2(net, valid, args.bug):.3f}")
    print(f"reported {r2(net, valid, args.bug):.4f}")
    print(f"metric {r2(net, test, args.bug):.4f}")


if __name__ == "__main__":
    main()
