"""Programs that write to their own state are left bit for bit as they were, by every verb."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy
import pytest
import torch

import leadline
from leadline import Case
from tests.support.faults import (  # noqa: F401  (they add programs)
    writers_of_batches,
    writers_of_code,
    writers_of_weights,
)
from tests.support.faults.contents import Contents, contents, settings
from tests.support.faults.writers import PROGRAMS, Program
from tests.support.zoo.plain_run import call, loss_of

VERBS: dict[str, Callable[[Case], object]] = {
    "check": lambda case: leadline.check(case, rehearse=8),
    "update": leadline.update,
    "symmetries": leadline.symmetries,
    "fix": lambda case: leadline.fix(case, budget=0.05),
}
MOVED = {"a plain tensor that is resized", "a buffer that grows"}
"""Programs that let torch allocate the memory of a tensor anew."""


@pytest.fixture(autouse=True)
def _default_settings() -> Iterator[None]:
    """Undo what a program sets in the whole process; some set it in this test's own call."""
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=False)
    torch.autograd.set_detect_anomaly(mode=False)
    torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", enabled=False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled = False, True
    torch.backends.cuda.enable_flash_sdp(enabled=True)
    torch._C._set_mkldnn_enabled(True)  # noqa: FBT003  (it takes no name)
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    numpy.seterr(over="warn")


def everything(program: Program) -> Contents:
    case = program.case
    roots = {"model": case.model, "inputs": case.inputs, "targets": case.targets, "loss": case.loss}
    roots |= {"groups": case.optimizer.param_groups, "state": case.optimizer.state}
    roots |= {"defaults": case.optimizer.defaults}
    return contents(**roots, **program.others) | settings()


def changes(before: Contents, after: Contents) -> list[str]:
    missing = object()
    return [name for name in {**before, **after} if before.get(name, missing) != after.get(name, missing)]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_writes_is_left_as_it_was(name: str, verb: str):
    program = PROGRAMS[name]()
    before = everything(program)
    with suppress(Exception):  # what it says is the subject of other tests
        VERBS[verb](program.case)
    found = changes(before, everything(program))
    assert [each for each in found if name not in MOVED or not each.endswith(": place")] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_does_write(name: str):
    program = PROGRAMS[name]()
    before = everything(program)
    loss_of(program.case, call(program.case)).backward()
    gradients = {f"model.{key}.grad" for key, _ in program.case.model.named_parameters()}
    assert [each for each in changes(before, everything(program)) if each.partition(": ")[0] not in gradients]
