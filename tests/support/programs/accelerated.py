"""An Accelerate loop with accumulation, a scheduler and clipping through the accelerator."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
labels = torch.randint(4, (192,))
inputs = torch.randn(4, 16)[labels] + 0.4 * torch.randn(192, 16)
model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for batch, target in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(batch), target)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(loss.item())
accelerator.print("weights", sum(each.double().sum().item() for each in model.parameters()))
