"""Several at once: watches, traces, threads, forked children and the workers of a data loader."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leadline
from leadline.monitor.runfile import Run
from leadline.records import Trace
from leadline.tracer.restore import random_states
from tests.support.forks import status_in_child
from tests.support.watched_training import remains, unlike

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def small(seed: int = 0, width: int = 4) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randn(5, 4)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int = 4) -> list[Tensor]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def left(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[Tensor]) -> dict[str, object]:
    return dict(remains(model, optimizer, losses))


def in_threads(works: list[Callable[[], object]]) -> list[object]:
    """All at once; what each returned, or the error it raised."""
    found: list[object] = [None] * len(works)
    gate = threading.Barrier(len(works))

    def run(place: int) -> None:
        gate.wait()
        try:
            found[place] = works[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_watches_on_one_model_see_the_same_and_change_nothing(tmp_path, first_out):
    model, optimizer, x = small()
    torch.manual_seed(1)
    plain = left(model, optimizer, train(model, optimizer, x))
    model, optimizer, x = small()
    watches = [leadline.watch(model, optimizer, every=1, store=tmp_path / f"{n}.leadline") for n in range(2)]
    torch.manual_seed(1)
    losses = train(model, optimizer, x, 2)
    watches[first_out].close()
    losses += train(model, optimizer, x, 2)
    watches[1 - first_out].close()
    assert unlike(plain, left(model, optimizer, losses)) == []
    assert [watch.trouble for watch in watches] == ["", ""]
    norms = []
    for place, steps in ((first_out, 2), (1 - first_out, 4)):
        with Run(tmp_path / f"{place}.leadline") as run:
            assert run.steps == list(range(steps))
            norms.append(run.scalars("grad_norm")[1])
    assert norms[0] == pytest.approx(norms[1][:2])


def test_two_watches_of_one_file_are_refused(tmp_path):
    model, optimizer, _ = small()
    with (
        leadline.watch(model, optimizer, store=tmp_path / "a.leadline"),
        pytest.raises(leadline.InputError, match="this process is writing"),
    ):
        leadline.watch(model, optimizer, store=tmp_path / "a.leadline")


@pytest.mark.slow  # it crashes the process now and then, cause unknown: docs/explanation/limits.md
def test_watched_trainings_in_threads_do_not_meet(tmp_path):
    """Without dropout: threads share the random numbers of torch, with and without a watch."""

    def alone(seed: int, store: Path | None) -> dict[str, object]:
        model, optimizer, x = cases[seed]
        model.eval()
        with leadline.watch(model, optimizer, every=1, store=store) as watch:
            losses = train(model, optimizer, x)
        assert watch.trouble == ""
        return {name: said for name, said in left(model, optimizer, losses).items() if "random" not in name}

    cases = [small(seed, 4 + seed) for seed in range(4)]
    expected = [alone(seed, None) for seed in range(4)]
    cases = [small(seed, 4 + seed) for seed in range(4)]
    stores = [tmp_path / f"{seed}.leadline" for seed in range(4)]
    found = in_threads([lambda seed=seed: alone(seed, stores[seed]) for seed in range(4)])
    assert [unlike(one, other) for one, other in zip(expected, found, strict=True)] == [[]] * 4
    for seed, store in enumerate(stores):
        with Run(store) as run:
            assert run.steps == [0, 1, 2, 3]
            assert run.info.parameters == sum(each.numel() for each in cases[seed][0].parameters())


def shape_of(found: object) -> tuple[object, ...]:
    assert isinstance(found, Trace), found
    return [op.name for op in found.ops], found.loss, [each.grad_norm for each in found.parameters]


def test_traces_in_threads_equal_traces_made_one_by_one():
    cases = [small(seed, 4 + seed) for seed in range(4)]
    for model, _, _ in cases:
        model.eval()

    def one(place: int) -> Trace:
        model, _, x = cases[place]
        return leadline.trace(model, x, loss=lambda output: output.square().mean())

    expected = [shape_of(one(place)) for place in range(4)]
    for _ in range(3):
        found = in_threads([lambda place=place: one(place) for place in range(4)])
        assert [shape_of(each) for each in found] == expected
    assert torch._C._len_torch_function_stack() == 0
    assert not nn.modules.module._global_forward_hooks


def test_a_trace_does_not_disturb_a_training_in_another_thread():
    model, optimizer, x = small()
    model.eval()
    expected = train(model, optimizer, x, 20)
    model, optimizer, x = small()
    model.eval()
    other, _, y = small(5)

    def look() -> list[Trace]:
        return [leadline.trace(other, y, loss=torch.sum) for _ in range(5)]

    losses, traces = in_threads([lambda: train(model, optimizer, x, 20), look])
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert {len(each.ops) for each in traces} == {len(traces[0].ops)}


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # what torch says on a single core
def test_the_forked_workers_of_a_data_loader_do_not_write_the_run(tmp_path):
    model, optimizer, _ = small()
    loader = DataLoader(
        TensorDataset(torch.randn(12, 4)), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    path = tmp_path / "run.leadline"
    with leadline.watch(model, optimizer, every=1, store=path) as watch:
        for _ in range(2):
            for (x,) in loader:
                optimizer.zero_grad()
                watch.loss(model(x).square().mean()).backward()
                optimizer.step()
    assert watch.trouble == ""
    with Run(path) as run:
        assert run.steps == list(range(6))
        assert run.state == "ended"


def test_a_child_process_that_trains_on_does_not_write_to_the_run_of_its_parent(tmp_path):
    model, optimizer, x = small()
    path = tmp_path / "run.leadline"
    with leadline.watch(model, optimizer, every=1, store=path) as watch:
        train(model, optimizer, x, 2)
        assert status_in_child(lambda: (train(model, optimizer, x, 5), watch.close())) == 0
        train(model, optimizer, x, 2)
    with Run(path) as run:
        assert run.steps == [0, 1, 2, 3]
        assert run.state == "ended"


def collecting(read: Callable[[], object]) -> None:
    """Reads with the collector at work all the time, and collected things that ask for torch's generator."""
    state = torch.get_rng_state()
    gc.callbacks.append(lambda phase, about: torch.set_rng_state(state))
    gc.set_threshold(1)
    kept = [read() for _ in range(20)]
    assert len(kept) == 20


def test_the_collector_may_ask_for_random_numbers_while_their_state_is_read():
    assert status_in_child(lambda: collecting(random_states)) == 0


@pytest.mark.slow  # it waits
def test_reading_the_state_with_torch_never_returns():
    """What the one above would miss if torch, or the test, were otherwise."""
    assert status_in_child(lambda: collecting(torch.get_rng_state), patience=3) != 0


def test_a_thread_that_fails_is_seen():
    (error,) = in_threads([lambda: 1 / 0])
    assert isinstance(error, ZeroDivisionError)
    with pytest.raises(AssertionError):
        shape_of(error)
