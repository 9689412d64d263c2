"""Mixed precision with a GradScaler on the CPU, clipping after unscaling, and a one-cycle schedule."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=16)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)
centers = torch.randn(4, 16)
for step in range(16):
    labels = torch.randint(4, (32,))
    inputs = centers[labels] + 0.5 * torch.randn(32, 16)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(step, loss.item(), scaler.get_scale())
print("weights", sum(each.double().sum().item() for each in model.parameters()))
