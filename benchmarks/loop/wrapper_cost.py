r"""Measure what recording one loss takes, and a step whose loss is not recorded, over what is timed within.

    python -m benchmarks.loop.wrapper_cost

A watch times what it does, but not how it is called: by a wrapper of the backward pass and by hooks, whose code
training has displaced from the caches. So clocks are set around them: hooks before and after those of the watch, and a
backward pass that notes when it begins and ends. Medians are compared, which no interruption moves. The same clocks
around nothing are subtracted. The factors are in `leadline.monitor.budget`; this prints what they were found to be.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from time import perf_counter
from typing import Any

import torch
from torch import nn

import leadline
from leadline.monitor import budget, loop_calls

WIDTH, LAYERS, BATCH = 128, 8, 16
# Steps before the measurement: more than those that are followed on credit.
FIRST_STEPS, STEPS = 200, 1500
# Steps from one recorded loss to the next.
INTERVAL = 8


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(4096, WIDTH)
    clock: dict[str, float] = {}
    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def timed_backward(*args: Any, **kwargs: Any) -> Any:
        clock["backward"] = perf_counter()
        result = run_backward(*args, **kwargs)
        clock["end of backward"] = perf_counter()
        return result

    def step() -> tuple[float, float]:
        """Make a step; return the seconds around the backward pass and around the hooks before and after the step."""
        x = data[torch.randint(len(data), (BATCH,))]
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        start = perf_counter()
        loss.backward()
        around = perf_counter() - start - (clock["end of backward"] - clock["backward"])
        optimizer.step()
        before = clock["last hook before"] - clock["first hook before"]
        return around, before + clock["last hook"] - clock["first hook"]

    def note(name: str) -> Any:
        return lambda *_: clock.__setitem__(name, perf_counter())

    torch.autograd._engine_run_backward = timed_backward  # type: ignore[attr-defined]
    optimizer.register_step_post_hook(note("first hook"))
    optimizer.register_step_pre_hook(note("first hook before"))
    budget.MAX_LEDGER_REST = budget.NEVER  # type: ignore[misc]
    with leadline.watch(model, optimizer) as watch:
        optimizer.register_step_pre_hook(note("last hook before"))
        last = optimizer.register_step_post_hook(note("last hook"))
        for _ in range(FIRST_STEPS):
            step()
        steps, schedule = watch._steps, watch._schedule
        schedule._plan_losses = lambda: None  # type: ignore[method-assign]
        schedule.loss_interval = INTERVAL
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(STEPS):
            kind = "skipped" if steps.skipped.is_active else "recorded"
            arms = kind == "skipped" and not steps.skipped.left
            backward, hooks = step()
            found[f"{kind}, backward"].append(backward)
            found["armed, hooks" if arms else f"{kind}, hooks"].append(hooks)
        timed = statistics.median(schedule._loss_costs)
    last.remove()
    optimizer.register_step_post_hook(note("last hook"))
    for _ in range(STEPS // 4):
        backward, hooks = step()
        found["alone, backward"].append(backward)
        found["alone, hooks"].append(hooks)
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
    assert not loop_calls.is_published()
    usual = {name: statistics.median(each) for name, each in found.items()}
    for name, seconds in sorted(usual.items()):
        print(f"{name}: {1e6 * seconds:.1f} us")
    skipped = usual["skipped, hooks"] - usual["alone, hooks"]
    recorded = usual["recorded, backward"] - usual["alone, backward"]
    recorded += usual["recorded, hooks"] + usual["armed, hooks"] - 2 * usual["alone, hooks"] - skipped
    print(f"timed within a recorded step: {1e6 * timed:.1f} us")
    always = recorded - (usual["armed, hooks"] - usual["alone, hooks"] - skipped)
    print(
        f"recorded: {recorded / timed:.2f} times that, of which {always / timed:.2f} if every loss is recorded"
    )
    print(f"skipped: {skipped / timed:.3f} times that")


if __name__ == "__main__":
    main()
