"""Denoising diffusion of two moons in the plane, with an average of the weights."""

import argparse
import copy

import torch
from sklearn.datasets import make_moons
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bug", default="")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
T, BATCH = 40, 128
betas = torch.linspace(1e-3, 0.2, T)
alphas = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = nn.Embedding(T, width)
        self.inputs = nn.Linear(2, width)
        self.net = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(self.inputs(x) + self.time(t))


class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)

    def update(self, model, decay=0.98):
        for mine, other in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.data.mul_(decay).add_(other.data, alpha=1 - decay)


def sample(model, n):
    x = torch.randn(n, 2)
    with torch.no_grad():
        for t in reversed(range(T)):
            noise = model(x, torch.full((n,), t))
            x = (x - betas[t] / (1 - alphas[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
            if t:
                x = x + betas[t].sqrt() * torch.randn(n, 2)
    return x


def distance(a, b):
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


torch.manual_seed(args.seed)
data = torch.tensor(make_moons(3000, noise=0.05, random_state=0)[0], dtype=torch.float32) * 1.5
model = Denoiser()
average = Average(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(400):
    x = data[torch.randint(0, len(data), (BATCH,))]
    if args.bug == "timestep_is_batch_size":
        t = torch.full((BATCH,), BATCH % T)
    else:
        t = torch.randint(0, T, (BATCH,))
    noise = torch.randn_like(x)
    noisy = alphas[t].sqrt()[:, None] * x + (1 - alphas[t]).sqrt()[:, None] * noise
    loss = nn.functional.mse_loss(model(noisy, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    if step % 10 == 9:  # a preview with the averaged weights
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.model.state_dict())
        preview = sample(model, 4)
        if args.bug != "weights_not_restored":
            model.load_state_dict(kept)
    if step % 100 == 0:
        print(f"{step} {loss.item():.3f}")
end, start = distance(sample(average.model, 1000), data[:1000]), distance(torch.randn(1000, 2), data[:1000])
print(f"metric {(1 - end / start).item():.4f}")
