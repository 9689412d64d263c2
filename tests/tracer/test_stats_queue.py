"""Statistics that are measured in batches are those of each tensor by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from leadline.tracer import stats
from leadline.tracer.stats import UnitKind
from leadline.tracer.stats_queue import MAX_BATCH_SIZE, MAX_QUEUED_SIZE, MAX_RESERVED_SIZE, StatsQueue
from leadline.tracer.values import ValueEntry, describe

ROW = (6, 8)
HARD = {
    "zeros": torch.zeros(ROW),
    "some zeros": torch.randn(ROW).relu(),
    "negative with zeros": -torch.randn(ROW).relu(),
    "nothing else": torch.full(ROW, -0.0),
    "NaN": torch.randn(ROW).index_fill(0, torch.tensor([2]), torch.nan),
    "infinite": torch.randn(ROW).index_fill(1, torch.tensor([0]), torch.inf),
    "both infinities": torch.tensor([torch.inf, -torch.inf, 1.0, 0.0] * 12).view(ROW),
    "huge": torch.randn(ROW) * 1e30,
    "tiny": torch.randn(ROW) * 1e-30,
    "denormal": torch.full(ROW, 1e-42),
    "huge and tiny": torch.tensor([3e38, 1e-38] * 24).view(ROW),
    "a dead unit": torch.randn(ROW).abs() * (torch.arange(8) != 3),
}


def queued(queue: StatsQueue, tensor: Tensor, units: UnitKind | None = None) -> ValueEntry:
    entry = describe(tensor)
    entry.is_queued = queue.add(tensor, entry, units=units)
    return entry


def measured(entry: ValueEntry) -> leadline.records.Stats:
    assert entry.forward is not None
    return stats.fetch_stats([entry.forward])[0]


def assert_same(one: leadline.records.Stats, other: leadline.records.Stats) -> None:
    for name in ("count", "non_finite", "zero_share"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("ms", "abs_max"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-5, nan_ok=True)
    assert one.mean == pytest.approx(other.mean, rel=1e-4, abs=1e-6 * one.ms**0.5, nan_ok=True)


def test_a_batch_gives_the_statistics_of_each_tensor_whatever_the_others_hold():
    queue = StatsQueue()
    entries = {name: queued(queue, tensor) for name, tensor in HARD.items()}
    queue.measure()
    for name, tensor in HARD.items():
        (alone,) = stats.fetch_stats([stats.measure(tensor)])
        assert_same(measured(entries[name]), alone)


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0)])
def test_a_batch_counts_the_units_of_each_tensor(bounds: tuple[float, float] | None):
    queue = StatsQueue()
    kind = UnitKind(-1, is_activation=True, bounds=bounds)
    finite = {name: tensor for name, tensor in HARD.items() if tensor.isfinite().all()}
    entries = {name: queued(queue, tensor, kind) for name, tensor in finite.items()}
    queue.measure()
    for name, tensor in finite.items():
        alone = stats.measure_value(tensor, kind)
        assert stats.fetch_units([entries[name].units]) == stats.fetch_units([alone.units]), name  # type: ignore[list-item]
        assert entries[name].shared_mean == pytest.approx(alone.shared_mean, rel=1e-5)


def test_what_is_written_to_a_tensor_later_does_not_matter():
    queue, tensor = StatsQueue(), torch.ones(4)
    entry = queued(queue, tensor)
    tensor.fill_(7.0)
    queue.measure()
    assert measured(entry).abs_max == 1.0


def test_a_full_batch_is_measured_at_once():
    queue = StatsQueue()
    entries = [queued(queue, torch.full((MAX_QUEUED_SIZE,), float(number))) for number in range(40)]
    assert entries[0].forward is not None
    queue.measure()
    assert [measured(entry).abs_max for entry in entries] == list(range(40))


def test_many_shapes_do_not_wait_in_more_memory_than_the_limit():
    queue = StatsQueue()
    count = 2 * MAX_RESERVED_SIZE // MAX_BATCH_SIZE
    entries = [queued(queue, torch.ones(MAX_QUEUED_SIZE - number)) for number in range(count)]
    assert entries[0].forward is not None
    assert entries[-1].is_queued


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(MAX_QUEUED_SIZE + 1),
        torch.ones(0),
        torch.ones(4, 3).t(),
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.bfloat16),
        nn.Parameter(torch.ones(3)),
        torch.ones(3).to_sparse(),
        torch.ones(3, device="meta"),
    ],
)
def test_only_small_plain_tensors_on_the_cpu_wait(tensor: Tensor):
    assert not StatsQueue().add(tensor, describe(tensor))


def test_a_default_device_does_not_move_what_waits():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    batch = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with torch.device("meta"):
        trace = leadline.trace(model, *batch, F.cross_entropy, theory=False)
    assert all(value.forward is not None for value in trace.values if value.op is not None)
