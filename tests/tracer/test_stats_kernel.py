"""The compiled kernel and torch measure the same, and the kernel reads only what is plain memory."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from leadline.tracer import stats, stats_kernel
from tests.support import ROOT

needs_kernel = pytest.mark.skipif(bool(stats_kernel.ABSENCE), reason=stats_kernel.ABSENCE)
ROW = (6, 8)
HARD = {
    "zeros": torch.zeros(ROW),
    "some zeros": torch.randn(ROW).relu(),
    "negative with zeros": -torch.randn(ROW).relu(),
    "all negative": -torch.rand(ROW) - 1,
    "all positive": torch.rand(ROW) + 1,
    "negative zeros": torch.full(ROW, -0.0),
    "NaN": torch.randn(ROW).index_fill(0, torch.tensor([2]), torch.nan),
    "negative NaN": torch.randn(ROW).index_fill(0, torch.tensor([2]), -torch.nan),
    "infinite": torch.randn(ROW).index_fill(1, torch.tensor([0]), torch.inf),
    "both infinities": torch.tensor([torch.inf, -torch.inf, 1.0, 0.0] * 12).view(ROW),
    "huge": torch.randn(ROW) * 1e30,
    "tiny": torch.randn(ROW) * 1e-30,
    "denormal": torch.full(ROW, 1e-42),
    "huge and tiny": torch.tensor([3e38, 1e-38] * 24).view(ROW),
    "a dead unit": torch.randn(ROW).abs() * (torch.arange(8) != 3),
    "one number": torch.tensor([[2.0]]),
    "more than a block": torch.randn(37, 131),
    "more units than there is room for": torch.randn(3, stats_kernel.MAX_UNITS_WITHOUT_ROOM + 1),
}


def measure_both_ways(
    x: Tensor, kind: stats.UnitKind | None = None
) -> tuple[stats.ValueStats, stats.ValueStats]:
    assert stats_kernel.can_read(x)
    by_kernel = stats.measure_value(x, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_kernel, "_LIBRARY", None)
        return by_kernel, stats.measure_value(x, kind)


def assert_same(one: stats.ValueStats, other: stats.ValueStats) -> None:
    first, second = stats.fetch_stats([one.forward, other.forward])
    for name in ("count", "non_finite", "zero_share"):
        assert getattr(first, name) == pytest.approx(getattr(second, name))
    for name in ("ms", "abs_max"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-5, nan_ok=True)
    assert first.mean == pytest.approx(second.mean, rel=1e-4, abs=1e-6 * first.ms**0.5, nan_ok=True)


@needs_kernel
@pytest.mark.parametrize("name", HARD)
def test_the_kernel_and_torch_measure_the_same(name: str):
    assert_same(*measure_both_ways(HARD[name]))


@needs_kernel
@given(st.lists(st.floats(width=32), min_size=1, max_size=60))
def test_the_kernel_and_torch_measure_the_same_of_any_numbers(numbers: list[float]):
    assert_same(*measure_both_ways(torch.tensor(numbers, dtype=torch.float32)))


@needs_kernel
@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
@pytest.mark.parametrize("name", [name for name, x in HARD.items() if x.isfinite().all()])
def test_the_kernel_and_torch_count_the_same_units(name: str, bounds: tuple[float, float] | None):
    one, other = measure_both_ways(HARD[name], stats.UnitKind(-1, is_activation=True, bounds=bounds))
    assert_same(one, other)
    assert stats.fetch_units([one.units]) == stats.fetch_units([other.units])  # type: ignore[list-item]
    means = HARD[name].double().mean(0)  # torch's squares of huge means would be infinite
    assert one.shared_mean == pytest.approx(means.square().mean().item(), rel=1e-6)


@needs_kernel
def test_the_kernel_notices_a_single_number_anywhere():
    for place in (0, 15, 16, 1023, 1024, 2047, 2100):
        x = torch.zeros(2101)
        x[place] = -3.0
        sums = stats_kernel.measure(x)
        assert sums is not None
        assert sums[:5] == (-3.0, 9.0, -3.0, 0.0, 1.0)
        x[place] = torch.nan
        assert stats_kernel.measure(x) is None


class Wrapped(Tensor):
    """A class of its own, which may mean anything by its memory."""


def nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(2)])


UNREADABLE = {
    "empty": torch.ones(0),
    "transposed": torch.ones(4, 3).t(),
    "float64": torch.ones(3, dtype=torch.float64),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.ones(3, device="meta"),
    "of another class": torch.ones(3).as_subclass(Wrapped),
    "nested": nested(),
    "negated when it is read": torch.ones(1, dtype=torch.complex64).conj().imag,
    "freed": torch.ones(3),
    "a stand-in for zeros": torch._efficientzerotensor(3),
}
UNREADABLE["freed"].untyped_storage().resize_(0)


@pytest.mark.parametrize("name", UNREADABLE)
def test_only_plain_memory_is_read(name: str):
    assert not stats_kernel.can_read(UNREADABLE[name])


@needs_kernel
def test_parameters_and_plain_tensors_are_read():
    assert stats_kernel.can_read(nn.Parameter(torch.ones(3)))
    assert stats_kernel.can_read(torch.ones(3))


@needs_kernel
def test_a_tensor_inside_a_function_transform_is_not_read():
    seen = []
    torch.func.vmap(lambda row: (seen.append(stats_kernel.can_read(row)), row * 2)[1])(torch.randn(3, 2))
    assert seen == [False]


@needs_kernel
def test_many_threads_read_a_large_tensor_and_one_thread_a_small_one(monkeypatch: pytest.MonkeyPatch):
    small, large = torch.ones(8), torch.ones(stats_kernel.MAX_SIZE_FOR_MANY_THREADS + 1)
    for threads in (stats_kernel.MAX_THREADS, stats_kernel.MAX_THREADS + 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert stats_kernel.can_read(small)
        assert stats_kernel.can_read(large) == (threads == stats_kernel.MAX_THREADS)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


@needs_kernel
def test_a_trace_has_the_same_values_with_the_kernel_and_without(monkeypatch: pytest.MonkeyPatch):
    batch = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 1, 0])
    with_kernel = leadline.trace(network(), *batch, F.cross_entropy)
    monkeypatch.setattr(stats_kernel, "_LIBRARY", None)
    without = leadline.trace(network(), *batch, F.cross_entropy)
    assert [op.name for op in with_kernel.ops] == [op.name for op in without.ops]
    for one, other in zip(with_kernel.values, without.values, strict=True):
        assert one.units == other.units
        assert (one.common_ms is None) == (other.common_ms is None)
        assert (one.common_ms or 0.0) == pytest.approx(other.common_ms or 0.0, rel=1e-3, abs=1e-9)
        for name in ("forward", "backward"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None) == (second is None)
            if first is not None:
                assert first.rms == pytest.approx(second.rms, rel=1e-5)


def test_why_the_kernel_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats_kernel, "PATH", tmp_path / "none.so")
    assert stats_kernel._load() == (None, "it was not compiled for this platform")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(stats_kernel, "PATH", broken)
    library, why = stats_kernel._load()
    assert library is None
    assert "broken.so" in why


@needs_kernel
def test_a_kernel_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats_kernel, "VERSION", stats_kernel.VERSION + 1)
    library, why = stats_kernel._load()
    assert library is None
    assert "another version" in why


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_kernel_compiles_without_a_warning_and_needs_only_the_c_library(tmp_path: Path):
    library = tmp_path / "kernel.so"
    program = (
        "import sys; from pathlib import Path; import hatch_build;"
        "hatch_build.FLAGS += ['-Wall', '-Wextra', '-Werror'];"
        "sys.exit(hatch_build.compile_kernel(hatch_build.TRACER, Path(sys.argv[1])) or None)"
    )
    folder = (
        tmp_path / "hatchling" / "builders" / "hooks" / "plugin"
    )  # the build backend is not installed here
    folder.mkdir(parents=True)
    (folder / "interface.py").write_text("class BuildHookInterface: pass\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    subprocess.run([sys.executable, "-c", program, str(library)], cwd=ROOT, env=environment, check=True)
    loaded = ctypes.CDLL(str(library))
    assert loaded.leadline_version() == stats_kernel.VERSION
