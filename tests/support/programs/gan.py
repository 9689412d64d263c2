"""A GAN in the shape of DCGAN: two optimizers, labels that are refilled in place, images used by both steps."""

import torch
from torch import nn, optim

torch.manual_seed(0)
netG = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(True), nn.Linear(64, 32), nn.Tanh())
netD = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2, inplace=True), nn.Linear(64, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

for step in range(12):
    netD.zero_grad()
    real = 0.5 * torch.randn(24, 32)
    label = torch.full((24,), 1.0)
    output = netD(real).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()
    fake = netG(torch.randn(24, 16))
    label.fill_(0.0)
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake).view(-1)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    print(step, errD.item(), errG.item(), D_x)
print("weights", sum(each.double().sum().item() for net in (netD, netG) for each in net.parameters()))
