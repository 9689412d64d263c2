"""Settings every test runs under: one torch thread a worker, and random examples that repeat."""

import os

# Some virtual machines announce AMX and fault on it, so bfloat16 would end the process. Read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from hypothesis import settings

pytest_plugins = ["pytester"]  # runs of pytest within a test, for those of our own plugin

torch.set_num_threads(1)  # several workers share the cores

# `make test` draws the same examples every time; `make test-slow` explores. Shared machines make deadlines flaky.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("repeatable")
