"""Data-parallel training with torchrun: two gloo processes, a DistributedSampler, prints on rank 0."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
labels = torch.randint(4, (128,))
inputs = torch.randn(4, 16)[labels] + 0.4 * torch.randn(128, 16)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset, seed=3)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(epoch, loss.item())
total = sum(each.double().sum() for each in model.parameters()).detach()
dist.all_reduce(total)
if rank == 0:
    print("weights", total.item())
dist.destroy_process_group()
