"""Memory that PyTorch's allocator hands out, as its profiler counts it: no clock and no resident memory is involved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def peak_allocation(run: Callable[[], object]) -> int:
    """Return the largest number of bytes on the CPU that `run()` held at a time, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    return max(accumulate((each.nbytes() for each in events), initial=0))
