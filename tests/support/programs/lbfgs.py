"""Time series prediction with LBFGS, whose closure computes loss and gradients."""

import torch
from torch import nn, optim

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1)).double()
criterion = nn.MSELoss()
data = torch.sin(torch.arange(72, dtype=torch.float64) / 4).unfold(0, 9, 1)
inputs, target = data[:, :8], data[:, 8:]
optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
for step in range(5):

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(inputs), target)
        print("loss:", loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
print("weights", sum(each.double().sum().item() for each in model.parameters()))
