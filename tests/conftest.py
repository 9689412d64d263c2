"""Settings every test runs under: one torch thread a worker, and random examples that repeat."""

import os
import sys
import traceback

# Some virtual machines announce AMX and fault on it, so bfloat16 would end the process. Read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["pytester"]  # runs of pytest within a test, for those of our own plugin

torch.set_num_threads(1)  # several workers share the cores

# `make test` draws the same examples every time; `make test-slow` explores. Shared machines make deadlines flaky.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def nobody_listens():
    """A test that leaves a watch open would change what PyTorch does in the tests after it."""
    yield
    monitor = sys.modules.get("leadline.monitor.loop_calls")
    left = monitor._PUBLISHER.listeners if monitor else ()
    for listener in left:
        monitor._PUBLISHER.remove(listener)
    assert not left, "this test leaves open what it watches: close it, or use `with`"


@pytest.fixture(autouse=True)
def no_probe_fails(monkeypatch):
    """A probe with a bug is a line under "not checked", which looks as if the model had refused the batch."""
    errors = []

    def own_error(error):
        errors.append(error)
        return f"Leadline itself raised {type(error).__name__}"

    monkeypatch.setattr("leadline.readings.wiring.dependence.own_error", own_error)
    yield
    assert not errors, [traceback.format_exception(each) for each in errors]
