"""A compiled model: torch.compile with the eager backend needs no C++ compiler."""

import torch
from torch import nn

torch.manual_seed(0)
model = torch.compile(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
centers = torch.randn(4, 16)
for step in range(12):
    labels = torch.randint(4, (32,))
    loss = nn.functional.cross_entropy(model(centers[labels] + 0.5 * torch.randn(32, 16)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
