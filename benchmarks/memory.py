"""Measure the peak memory of one pass in a separate process (Linux only).

The process builds the case, runs the same kind of pass once on a slice of the batch (so that libraries have loaded
everything), returns freed memory to the system, resets the kernel's high-water mark of resident memory, runs the pass,
and reads the mark. The figure is the mark minus the resident memory before the pass: activations, gradients and
everything else that the pass held at its peak, without the weights and the interpreter.

The allocator is configured to map every block of 64 KB or more separately, so that a freed tensor leaves the resident
set at once. Otherwise the figure would depend on the allocator: the plain pass alone then varies by 15 % between runs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from leadline import Case

STATUS = Path("/proc/self/status")
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_MMAP_MAX_": "1000000", "MALLOC_ARENA_MAX": "1"}
RESET_PEAK = "5"  # written to /proc/self/clear_refs; see proc(5)


def peak_megabytes(workload: str, way: str, threads: int) -> float:
    """Run this module in a new process and return its figure."""
    arguments = [sys.executable, "-m", "benchmarks.memory", workload, way, str(threads)]
    environment = {**os.environ, **ALLOCATOR}
    return float(
        subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    )


def peak_of(run: Callable[[Case], object], case: Case) -> float:
    """Return the peak of resident megabytes during `run(case)`, minus those before."""
    run(_smaller(case))
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = _status("VmRSS")
    run(case)
    return (_status("VmHWM") - before) / 1024


def _smaller(case: Case) -> Case:
    """Return the case with two samples of its batch."""
    if isinstance(case.inputs, dict):
        return replace(case, inputs={name: each[:2] for name, each in case.inputs.items()})
    return replace(case, inputs=case.inputs[:2], targets=case.targets[:2])


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{STATUS} has no {field}: this measurement needs Linux")
    return int(found[1])


if __name__ == "__main__":
    import torch

    from benchmarks.trace import MEMORY_WAYS, WAYS
    from benchmarks.workloads import available, wide_mlp, with_adamw

    workload, way, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    if way in MEMORY_WAYS:
        print(peak_of(MEMORY_WAYS[way][1], with_adamw(wide_mlp())))
    else:
        print(peak_of(WAYS[way], available()[workload]()))
