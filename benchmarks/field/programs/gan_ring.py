"""A GAN that learns points on a ring."""

import argparse
import math

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--bug", default="")
p.add_argument("--seed", type=int, default=0)
opt = p.parse_args()
torch.manual_seed(opt.seed)


def real_batch(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(n, 2) + 1


def distance(a, b):
    """Energy distance of two samples."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


netG, netD = mlp(4, 2), mlp(2, 1)
with torch.no_grad():
    start = distance(netG(torch.randn(1000, 4)), real_batch(1000))
bce = nn.BCEWithLogitsLoss()
if opt.bug == "swapped_optimizers":
    optG = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.99))
    optD = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.99))
else:
    optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.99))
    optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.99))
schedules = [torch.optim.lr_scheduler.StepLR(each, step_size=4, gamma=0.1) for each in (optG, optD)]
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for epoch in range(8):
    for _ in range(50):
        fake = netG(torch.randn(64, 4))
        if opt.bug != "no_zero_grad_d":
            optD.zero_grad()
        loss_d = bce(netD(real_batch(64)), ones) + bce(netD(fake.detach()), zeros)
        loss_d.backward()
        optD.step()

        optG.zero_grad()
        guess = netD(fake.detach() if opt.bug == "fake_detached" else fake)
        loss_g = bce(guess, ones)
        loss_g.backward()
        optG.step()
        if opt.bug == "schedule_per_step":
            for schedule in schedules:
                schedule.step()
    if opt.bug != "schedule_per_step":
        for schedule in schedules:
            schedule.step()
    print(f"epoch {epoch} D {loss_d.item():.3f} G {loss_g.item():.3f}")
with torch.no_grad():
    end = distance(netG(torch.randn(1000, 4)), real_batch(1000))
print(f"metric {(1 - end / start).item():.4f}")
