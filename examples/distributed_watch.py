"""Train a deep residual stack with several processes under a watch: data parallel, or sharded with FSDP2.

    torchrun --nproc-per-node 2 examples/distributed_watch.py
    torchrun --nproc-per-node 2 examples/distributed_watch.py --shard

Every process runs the same lines; the first one writes the run file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import leadline

WIDTH = 32


def build(blocks: int) -> leadline.nn.MLP:
    torch.manual_seed(0)
    return leadline.nn.MLP(WIDTH, WIDTH, blocks, 10)


def sharded(model: nn.Module) -> nn.Module:
    """Shard every block, then the rest."""
    for block in model.modules():
        if isinstance(block, leadline.nn.Residual):
            fully_shard(block)
    return fully_shard(model)


def train(model: nn.Module, store: Path, steps: int) -> leadline.Watch:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    with leadline.watch(model, optimizer, store=store) as w:
        for _ in range(steps):
            x = torch.randn(16, WIDTH)
            w.loss(nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shard", action="store_true", help="FSDP2 instead of data parallel")
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--store", type=Path, help="run file; choose a new one for each run")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model = build(options.blocks)
    model = sharded(model) if options.shard else nn.parallel.DistributedDataParallel(model)
    store = options.store or Path("sharded.leadline" if options.shard else "distributed.leadline")
    w = train(model, store, options.steps)
    if dist.get_rank() == 0:
        norms = w.history.scalars("grad_norm").values
        print(
            f"{w.step} steps, gradient norm {norms[0]:.3g} to {norms[-1]:.3g}, watching took {w.overhead:.1%}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
