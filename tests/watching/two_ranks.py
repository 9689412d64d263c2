"""Run by torchrun in test_ranks.py: each rank trains, watched and not, and writes down what it saw."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import leadline

STEPS = 4


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.Tanh())), nn.Linear(8, 2))


def batch(rank: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(8, 8).chunk(2)[rank]


def replicated() -> nn.Module:
    return nn.parallel.DistributedDataParallel(stack())


def sharded() -> nn.Module:
    model = stack()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def train(model: nn.Module, x: Tensor, watch: dict | None, spoilt: int | None = None) -> dict:
    """Losses, a checksum of all weights, and what the watch saw. Of the step `spoilt` the loss is made infinite."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    w = None if watch is None else leadline.watch(model, optimizer, **watch)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(x).square().mean() * (math.inf if step == spoilt else 1.0)
        if w is not None:
            w.loss(loss)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.barrier()
    if w is not None and w._journal.ranks.rank != 0:
        w.close()
    dist.barrier()
    if w is not None:
        w.close()
    weights = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    found = {"losses": losses, "weights": [each.detach().flatten().tolist() for each in weights]}
    return found | ({} if w is None else seen_by(w))


def seen_by(w: leadline.Watch) -> dict:
    return {
        "trouble": w.trouble,
        "grad_norm": w.history.scalars("grad_norm").values,
        "update_norm": w.history.scalars("update_norm").values,
        "events": [(each.kind, each.message, each.data.get("rank", 0)) for each in w.events],
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = batch(rank)
    everything = {"every": 1, "store": folder / "run.leadline"}
    found = {
        "plain": train(replicated(), x, None),
        "replicated": train(replicated(), x, everything),
        "sharded": train(sharded(), x, {"every": 1}),
        "sharded by budget": train(sharded(), x, {"budget": 0.5}),
        "spoilt": train(replicated(), x, {"every": 1}, spoilt=1 if rank == 1 else None),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
