"""Find a square in a picture and say whether it is large: two losses, and phases for training and validation."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def pictures(n):
    """Pixels from 0 to 255, the place of the square from -1 to 1, and whether it is large."""
    grid = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
    place, large = torch.randint(3, 13, (n, 2)), torch.randint(0, 2, (n,))
    inside = (grid[None] - place[:, :, None, None]).abs().amax(1) <= (1 + large)[:, None, None]
    pixels = (60 + 120 * inside + 25 * torch.randn(n, 16, 16)).clamp(0, 255)
    return pixels.unsqueeze(1), (place.float() - 7.5) / 4.5, large


def prepare(pixels):
    if args.bug == "pixels_not_scaled":
        return pixels
    if args.bug == "scaled_twice":
        pixels = pixels / 255
    return pixels / 255


class Locator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.score, self.position = nn.Linear(64, 2), nn.Linear(64, 2)

    def forward(self, x):
        h = self.fc(self.conv(x))
        return self.score(h), self.position(h)


def compute_loss(score, position, large, place):
    score_loss = F.cross_entropy(score, large)
    position_loss = F.smooth_l1_loss(position, place)
    total = score_loss + 2 * position_loss
    if args.bug == "only_score_loss":
        total = score_loss
    return total


def quality(model, data):
    pixels, place, large = data
    with torch.no_grad():
        score, position = model(prepare(pixels))
    r2 = 1 - ((position - place) ** 2).mean() / place.var()
    return (((score.argmax(1) == large).float().mean() + r2.clamp(min=0)) / 2).item()


torch.manual_seed(args.seed)
sets = {"train": pictures(400), "val": pictures(200)}
test = pictures(400)
model = Locator()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(10):
    for phase in ("train", "val"):
        pixels, place, large = sets[phase]
        for rows in torch.randperm(len(pixels)).split(32):
            score, position = model(prepare(pixels[rows]))
            loss = compute_loss(score, position, large[rows], place[rows])
            if phase == "train" or args.bug == "validation_is_trained":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f} validation {quality(model, sets['val']):.3f}")
print(f"reported {quality(model, sets['val']):.4f}")
print(f"metric {quality(model, test):.4f}")
