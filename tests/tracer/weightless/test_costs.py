"""A prediction takes the memory of its libraries, and leaves the garbage collector as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leadline
from leadline.tracer.process import pause_garbage_collection

pytestmark = pytest.mark.long

PEAK = 2**20  # kB: the gigabyte of the requirements
STATUS = Path("/proc/self/status")
SCRIPT = """
import torch
import leadline

def make():
    stack = [torch.nn.Sequential(torch.nn.Linear(2**16, 2**16), torch.nn.ReLU()) for _ in range(16)]
    return torch.nn.Sequential(*stack), torch.randn(8, 2**16), None, lambda y: y.square().mean()

held = torch.ones({held})
report = leadline.predict(make)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(report.profile.parameters, peak.split()[1])
"""


def peak_of(held):
    """Parameters of a prediction and the peak of its process in kB, that keeps so many real numbers besides.

    Not `ru_maxrss`, which a child inherits from the process that started it.
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT.format(held=held)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    parameters, peak = run.stdout.split()
    return int(parameters), int(peak)


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the peak is read from /proc")
def test_a_model_far_larger_than_memory_is_predicted_in_less_than_a_gigabyte():
    parameters, peak = peak_of(held=0)
    assert parameters * 4 > 250 * 2**30
    assert peak < PEAK


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the peak is read from /proc")
def test_numbers_that_are_held_do_show_in_the_peak():
    assert peak_of(held=2**28)[1] > PEAK


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    def make():
        assert not gc.isenabled()
        return nn.Linear(8, 8), torch.randn(4, 8), None, lambda y: y.square().mean()

    with pause_garbage_collection():  # so that the test can measure either state
        if enabled:
            gc.enable()
        leadline.predict(make)
        assert gc.isenabled() is enabled


def test_the_collector_works_again_after_an_error():
    with pytest.raises(KeyError), pause_garbage_collection():
        raise KeyError
    assert gc.isenabled()
