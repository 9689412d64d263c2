"""Segmentation of discs and squares with a small U-Net; focal and dice losses."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
SIZE, CLASSES = 20, 3


def pictures(n):
    """Noisy pictures with one disc (class 1) and one square (class 2)."""
    grid = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).float()
    label = torch.zeros(n, SIZE, SIZE, dtype=torch.long)
    for kind in (1, 2):
        apart = (grid[None] - torch.randint(4, SIZE - 4, (n, 2, 1, 1))).abs()
        shape = (apart**2).sum(1) < 12 if kind == 1 else apart.amax(1) < 3
        label[shape] = kind
    return (label * 0.8 + 0.4 * torch.randn(n, SIZE, SIZE)).unsqueeze(1), label


def augment(image, label):
    if torch.rand(1) < 0.5:
        image = image.flip(-1)
        if args.bug != "flips_apart":
            label = label.flip(-1)
    if args.bug == "flips_apart" and torch.rand(1) < 0.5:
        label = label.flip(-1)
    return image, label


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, CLASSES, 1)
        )

    def forward(self, x):
        skip = self.down(x)
        x = self.out(torch.cat([skip, self.up(self.middle(skip))], 1))
        return torch.sigmoid(x) if args.bug == "sigmoid_twice" else x


def focal_loss(logits, target, alpha=0.5, gamma=2.0):
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    weight = target * alpha + (1 - target) * (1 - alpha)
    return (weight * (1 - torch.exp(-bce)) ** gamma * bce).mean()


def dice_loss(logits, target):
    p = logits.sigmoid()
    over = (0, 1, 2, 3) if args.bug == "dice_over_classes" else (2, 3)
    return 1 - ((2 * (p * target).sum(over) + 1) / (p.sum(over) + target.sum(over) + 1)).mean()


def edge_loss(logits, label):
    if args.bug == "argmax_in_loss":
        mask = logits.argmax(1).float()
    else:
        mask = 1 - logits.softmax(1)[:, 0]
    return ((mask - (label > 0).float()).diff(dim=-1) ** 2).mean()


torch.manual_seed(args.seed)
model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(120):
    image, label = augment(*pictures(12))
    logits = model(image)
    one_hot = F.one_hot(label, CLASSES).permute(0, 3, 1, 2).float()
    focal = (
        focal_loss(logits, one_hot, 2.0, 0.5) if args.bug == "focal_swapped" else focal_loss(logits, one_hot)
    )
    loss = focal + 0.5 * dice_loss(logits, one_hot) + 0.5 * edge_loss(logits, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    image, label = pictures(100)
    guess = model(image).argmax(1)
ious = [
    ((guess == c) & (label == c)).sum() / ((guess == c) | (label == c)).sum().clamp(min=1) for c in (1, 2)
]
print(f"metric {(sum(ious) / 2).item():.4f}")
