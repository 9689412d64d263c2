"""Run by torchrun in test_distributed.py: each rank trains, watched and not, and writes down what it saw."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import leadline

STEPS = 4
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
BLOCKS = ("forward_ms", "backward_ms")


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.Tanh())), nn.Linear(8, 2))


def batch(rank: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(8, 8).chunk(2)[rank]


def replicated() -> nn.Module:
    return nn.parallel.DistributedDataParallel(stack())


def sharded(model: nn.Module | None = None, **how) -> nn.Module:
    model = model or stack()
    for layer in list(model)[:-1]:  # the last one is gathered by the model itself
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **how)
    return fully_shard(model, **how)


def hooked(model: nn.Module) -> nn.Module:
    """A hook of the user's own is part of the model."""
    model.get_submodule("module.2" if hasattr(model, "module") else "2").register_forward_hook(
        lambda module, args, output: 2 * output
    )
    return model


def split() -> nn.Module:
    """Tensor parallel: each rank has a part of a layer, inside the pass too."""
    model = stack()
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def transformer() -> nn.Module:
    """In it a module uses its child's parameters."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2)]
    return nn.Sequential(*layers)


def train(model: nn.Module, x: Tensor, watch: dict | None, spoilt: int | None = None) -> dict:
    """Losses, a checksum of all weights, and what the watch saw. Of the step `spoilt` the loss is made infinite."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with torch.no_grad():
        model(x)  # after this a sharded model keeps what it gathered last
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
        "blocks": {name: [list(row) for row in w.history.recent(name).rows] for name in BLOCKS},
        "unmeasured": [] if w.report is None else [gap.what for gap in w.report.coverage.gaps],
        "model": None if w.report is None else w.report.profile.model,
        "parameter_blocks": dict(
            zip(w.history.layout.parameters, w.history.layout.parameter_blocks, strict=False)
        ),
        "events": [(each.kind, each.message, each.data.get("rank", 0)) for each in w.events],
    }


def loop_alerts(model: nn.Module, x: Tensor) -> dict:
    """What a watch says about twenty steps, which all processes make together."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leadline.watch(model, optimizer) as w:
        for _ in range(20):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            dist.barrier()
    return {"trouble": w.trouble, "codes": [each.code for each in w.alerts]}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = batch(rank)
    everything = {"every": 1, "store": folder / "run.leadline"}
    found = {
        "plain": train(replicated(), x, None),
        "replicated": train(replicated(), x, everything),
        "sharded, not watched": train(sharded(), x, None),
        "sharded": train(sharded(), x, {"every": 1}),
        "sharded, traced by turns": train(sharded(), x, {"every": 2}),
        "sharded in bfloat16": train(sharded(mp_policy=HALF), x, {"every": 1}),
        "sharded and hooked": train(hooked(sharded()), x, {"every": 1}),
        "hooked": train(hooked(replicated()), x, {"every": 1}),
        "split": train(split(), batch(0), {"every": 1}),
        "sharded and spoilt": train(sharded(), x, {"every": 1}, spoilt=1 if rank == 1 else None),
        "transformer": train(transformer(), x[:, None].repeat(1, 3, 1), {"every": 1}),
        "sharded transformer": train(sharded(transformer()), x[:, None].repeat(1, 3, 1), {"every": 1}),
        "sharded by budget": train(sharded(), x, {"budget": 0.5}),
        "spoilt": train(replicated(), x, {"every": 1}, spoilt=1 if rank == 1 else None),
        "alone together": loop_alerts(stack(), x),
        "in step": loop_alerts(replicated(), x),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
