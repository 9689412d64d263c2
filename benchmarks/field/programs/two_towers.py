"""Two towers learn to match two views of the same thing (InfoNCE)."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
TEMPERATURE = 0.1


def tower(inputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32))


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        if args.bug == "towers_multiplied":
            self.towers = nn.ModuleList([tower(24)] * 2)
        else:
            self.towers = nn.ModuleList([tower(24) for _ in range(2)])

    def forward(self, left, right):
        target = self.towers[1](right)
        if args.bug == "target_detached":
            target = target.detach()
        return F.normalize(self.towers[0](left), dim=1), F.normalize(target, dim=1)


def info_nce(query, key):
    scores = query @ key.T
    if args.bug == "positive_without_temperature":
        own = torch.eye(len(scores), dtype=torch.bool)
        scores = torch.where(own, scores, scores / TEMPERATURE)
    else:
        scores = scores / TEMPERATURE
    return F.cross_entropy(scores, torch.arange(len(scores)))


def views(n, generator=None):
    hidden = torch.randn(n, 8, generator=generator)
    left, right = torch.tanh(hidden @ MIX[0]), torch.tanh(hidden @ MIX[1])
    return left + 0.2 * torch.randn(n, 24, generator=generator), right + 0.2 * torch.randn(
        n, 24, generator=generator
    )


MIX = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(9)) / 3
torch.manual_seed(args.seed)
model = Matcher()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(200):
    loss = info_nce(*model(*views(64)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(f"{step:4d} {loss.item():.3f}")
with torch.no_grad():
    hits = []
    for seed in range(10):
        a, b = model(*views(64, torch.Generator().manual_seed(seed)))
        hits.append(((a @ b.T).argmax(1) == torch.arange(64)).float().mean().item())
print(f"metric {sum(hits) / 10:.4f}")
