"""Muon for matrices and AdamW for the rest, stepped together; a scheduler for each."""

import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(
    nn.Embedding(50, 32),
    *[nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32, bias=False), nn.GELU()) for _ in range(3)],
    nn.LayerNorm(32),
    nn.Linear(32, 50),
)
hidden = [p for block in model[1:4] for p in block.parameters() if p.dim() == 2]
others = [p for p in model.parameters() if all(p is not each for each in hidden)]
optimizers = [torch.optim.Muon(hidden, lr=0.02), torch.optim.AdamW(others, lr=3e-3)]
schedulers = [torch.optim.lr_scheduler.LinearLR(each, 0.1, total_iters=5) for each in optimizers]
successor = torch.randperm(50)
for step in range(14):
    inputs = torch.randint(50, (8, 16))
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), successor[inputs].flatten())
    loss.backward()
    for each in optimizers:
        each.step()
    for each in schedulers:
        each.step()
    model.zero_grad()
    print(step, loss.item())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
