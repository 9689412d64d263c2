"""Kinds of noisy signals, by residual blocks of one-dimensional convolutions."""

import argparse
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def signals(n, length=48):
    kind = torch.randint(0, 4, (n,))
    t = torch.arange(length) / length
    phase = 2 * math.pi * ((2 + 2 * torch.rand(n, 1)) * t + torch.rand(n, 1))
    shapes = [
        phase.sin(),
        phase.sin().sign(),
        2 * (phase / (2 * math.pi) % 1) - 1,
        phase.sin() * (2 * phase).cos(),
    ]
    x = torch.stack(shapes)[kind, torch.arange(n)] + 0.3 * torch.randn(n, length)
    return x.unsqueeze(1), kind


class Block(nn.Module):
    def __init__(self, inputs, outputs, residual=True):
        super().__init__()
        self.residual = residual
        self.norm = nn.BatchNorm1d(inputs)
        self.layer1 = nn.Conv1d(inputs, outputs, 5, padding=2)
        self.layer2 = nn.Conv1d(outputs, outputs, 5, padding=2)

    def forward(self, x):
        y = x
        z = torch.relu(self.layer1(self.norm(x)))
        if args.bug != "second_layer_unused":
            z = self.layer2(z)
        if self.residual:
            return x + x + z if args.bug == "shortcut_twice" else x + z
        return y if args.bug == "output_ignored" else z


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(
            Block(width, width, residual=False), Block(width, width, residual=False), Block(width, width)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.blocks(torch.relu(self.stem(x)))
        return self.head(torch.relu(x).mean(2))


torch.manual_seed(args.seed)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
net.train()
for step in range(130):
    x, kind = signals(48)
    loss = nn.functional.cross_entropy(net(x), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 26 == 0:
        print(f"step {step} loss {loss.item():.3f}")
net.eval()
with torch.no_grad():
    x, kind = signals(800)
    print(f"metric {(net(x).argmax(1) == kind).float().mean().item():.4f}")
