"""What a user can still do after a verb, or while a watch is open."""

from __future__ import annotations

import io
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import leadline
from leadline import Case
from leadline.tracer import state
from leadline.tracer.restore import activity_of_threads, random_states, restore_random
from tests.support.faults.writers import Net, case_of

VERBS = {
    "trace": leadline.trace,
    "check": lambda case: leadline.check(case, rehearse=8),
    "update": leadline.update,
    "symmetries": leadline.symmetries,
}


def normalized() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("verb", VERBS)
def test_a_loss_from_before_can_be_back_propagated_afterwards(verb: str):
    case, twin = case_of(normalized()), case_of(normalized())
    loss = functional.mse_loss(case.model(case.inputs), case.targets)
    functional.mse_loss(twin.model(case.inputs), case.targets).backward()
    VERBS[verb](case)
    loss.backward()
    for one, other in zip(case.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


class KeepsGraph(Net):
    """Its buffer is an average that keeps the graph of the last pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.average = self.average.detach()
        self.average.lerp_(hidden.mean(0), 0.1)
        return self.second(torch.relu(hidden - self.average))


@pytest.mark.parametrize("build", [normalized, KeepsGraph], ids=["batch norm", "graph in a buffer"])
@pytest.mark.parametrize("verb", ["verify", "balance", "shrink"])
def test_no_graph_is_left_in_buffers(build, verb: str):
    model, x = build(), torch.randn(6, 4)
    if verb == "verify":
        leadline.symmetries(model, x).verify(passes=3)
    elif verb == "balance":
        leadline.balance(model, x)
    else:
        with suppress(leadline.InputError):  # not every model has something to shrink
            leadline.shrink(model, x, 0.9)
    assert [name for name, each in model.named_buffers() if each.requires_grad] == []
    for _ in range(2):
        model(x).square().mean().backward()


@pytest.fixture
def _swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_swapping")
@pytest.mark.parametrize("verb", VERBS)
def test_parameters_can_be_swapped_after_a_verb(verb: str):
    case = case_of(normalized())
    VERBS[verb](case)
    case.model.load_state_dict(normalized().state_dict())
    case.model.double()
    assert case.model[0].weight.dtype == torch.float64


@pytest.mark.usefixtures("_swapping")
def test_parameters_can_be_swapped_while_they_are_watched():
    case = case_of(normalized())
    with leadline.watch(case.model, case.optimizer, every=1) as watch:
        for _ in range(3):
            case.optimizer.zero_grad()
            watch.loss(functional.mse_loss(case.model(case.inputs), case.targets)).backward()
            case.optimizer.step()
        case.optimizer.zero_grad()
        case.model.load_state_dict(normalized().state_dict())
        case.model.double()
    assert watch.trouble == ""


def test_another_thread_does_not_draw_the_same_numbers_twice():
    drawn: list[float] = []
    stop = threading.Event()
    started = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            drawn.append(torch.rand((), dtype=torch.float64).item())
            started.set()

    thread = threading.Thread(target=draw)
    thread.start()
    started.wait()
    case = case_of(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)))
    try:
        for _ in range(5):
            leadline.trace(case)
    finally:
        stop.set()
        thread.join()
    assert len(set(drawn)) == len(drawn)


def _wait_for_rest() -> None:
    """Wait until no other thread runs; on a busy machine a new one takes a while until it waits."""
    before, now = None, activity_of_threads()
    while now != before:
        time.sleep(0.01)
        before, now = now, activity_of_threads()


def test_a_thread_that_waits_does_not_keep_the_random_numbers_from_being_restored():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        _wait_for_rest()
        before = random_states()
        expected = torch.rand(3)
        restore_random(before)
        assert torch.equal(torch.rand(3), expected)
    finally:
        stop.set()
        thread.join()


def test_a_watch_leaves_no_recorder_on_the_stack_of_another_thread():
    model = normalized()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inside, closed = threading.Event(), threading.Event()
    model[2].register_forward_hook(lambda *_: (inside.set(), closed.wait(10), None)[-1])
    left: list[int] = []

    def train() -> None:
        model(torch.randn(6, 4)).sum().backward()
        left.append(torch._C._len_torch_function_stack())

    watch = leadline.watch(model, optimizer, every=1)
    thread = threading.Thread(target=train)
    thread.start()
    inside.wait(10)
    watch.close()
    closed.set()
    thread.join()
    assert left == [0]


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def train_nested(modules: int) -> str:
    """Train a model of nested modules, plainly and watched; return why the watch gave up, if it did."""
    model: nn.Module = nn.Linear(4, 2)
    for _ in range(modules):
        model = Wrapper(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(6, 4)
    model(x).sum().backward()  # torch itself can do it
    with leadline.watch(model, optimizer, every=1) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            watch.loss(model(x).square().mean()).backward()
            optimizer.step()
    return watch.trouble


def test_a_model_that_nests_as_deeply_as_torch_allows_is_watched():
    with ThreadPoolExecutor(1) as pool:  # where the frames of pytest do not count
        assert pool.submit(train_nested, 235).result() == ""


# What cannot be restored is said.


def gap_of(case: Case, words: str) -> tuple[str, ...]:
    report = leadline.check(case, rehearse=False, update=False, probes=False)
    return next((gap.where for gap in report.coverage.gaps if words in gap.what), ())


def test_a_file_is_said_to_be_beyond_restoring(tmp_path: Path):
    with (tmp_path / "log").open("w") as log:
        model = Net(lambda model, x: model.log.write("called"), log=log)
        assert gap_of(case_of(model), "files") == ("model.log",)


@pytest.mark.parametrize(
    "make", [lambda: iter([1, 2, 3] * 99), itertools.count, lambda: (x for x in range(999))]
)
def test_an_iterator_is_said_to_be_beyond_restoring(make):
    model = Net(lambda model, x: next(model.schedule), schedule=make())
    assert gap_of(case_of(model), "iterators") == ("model.schedule",)


def test_an_object_with_a_lock_is_left_to_its_threads():
    class Queue:
        def __init__(self) -> None:
            self.lock, self.items = threading.Lock(), []

    model = Net(lambda model, x: model.queue.items.append(1), queue=Queue())
    assert gap_of(case_of(model), "threads") == ("model.queue",)
    assert model.queue.items


def test_a_queue_is_left_to_its_threads_and_stays_whole():
    def put_and_take(model: Net, x: Tensor) -> None:
        model.queue.put("new")
        model.queue.put(model.queue.get())

    model = Net(put_and_take, queue=queue.SimpleQueue())
    assert gap_of(case_of(model), "threads") == ("model.queue",)
    count = model.queue.qsize()
    assert count > 0
    assert [model.queue.get_nowait() for _ in range(count)] == ["new"] * count


def test_a_list_of_a_million_numbers_is_said_to_be_too_large():
    model = Net(records=list(range(1_000_000)))
    assert gap_of(case_of(model), "large") == ("model.records",)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(99),
        lambda: np.zeros(99),
        lambda: bytearray(999),
        lambda: torch.zeros(99).untyped_storage(),
    ],
    ids=["tensor", "NumPy array", "bytes", "storage"],
)
def test_plain_state_that_is_too_large_to_copy_is_said_to_be(make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "MAX_COPIED_BYTES", 128)
    model = Net(bank=make(), small=torch.zeros(2))
    large = gap_of(case_of(model), "large")
    assert "model.bank" in large
    assert "model.small" not in large


@pytest.mark.parametrize(
    "make",
    [
        lambda: dict.fromkeys(map(str, range(2001))),
        lambda: [0] * 2001,
        lambda: {*range(2001)},
        lambda: np.array([None] * 2001, dtype=object),
        lambda: SimpleNamespace(**{f"each_{number}": number for number in range(2001)}),
    ],
    ids=["dict", "list", "set", "array of objects", "object"],
)
def test_plain_state_with_too_many_parts_is_said_to_be_too_large(make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "MAX_WALKED_ITEMS", 2000)
    model = Net(bank=make())
    assert "model.bank" in gap_of(case_of(model), "large")


def test_state_that_cannot_change_is_no_gap():
    locked = np.zeros(3)
    locked.setflags(write=False)
    closed = io.BytesIO(b"log")
    closed.close()
    model = Net(locked=locked, closed=closed)
    assert gap_of(case_of(model), "restoring") == ()


class Pool:
    """Something with an attribute that is computed once."""

    def __init__(self) -> None:
        self.size = 0

    @cached_property
    def limit(self) -> int:
        return 8


def test_weak_proxies_and_cached_properties_are_no_gap():
    pool = Pool()
    model = Net(lambda model, x: setattr(model.pool, "size", model.pool.limit), pool=weakref.proxy(pool))
    report = leadline.check(case_of(model), rehearse=False, update=False, probes=False)
    assert [gap for gap in report.coverage.gaps if gap.what.startswith("restoring")] == []
    assert vars(pool) == {"size": 0}


@pytest.mark.parametrize("size", [None, 4])
def test_a_cache_of_results_that_was_empty_is_empty_again(size: int | None):
    @lru_cache(maxsize=size)
    def noise(width: int) -> Tensor:
        return torch.randn(width)

    leadline.check(case_of(Net(lambda model, x: noise(4))), rehearse=8)
    assert noise.cache_info().currsize == 0


class DrawsWhenCopied(Net):
    def __deepcopy__(self, memo: dict[int, object]) -> DrawsWhenCopied:
        made = DrawsWhenCopied()
        made.load_state_dict(self.state_dict())
        return made


def test_a_model_that_draws_random_numbers_when_it_is_copied_leaves_them_as_they_were():
    case = case_of(DrawsWhenCopied())
    before = torch.get_rng_state()
    leadline.fix(case, budget=0.05)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_ordinary_model_has_no_such_gap():
    report = leadline.check(case_of(normalized()), rehearse=False)
    assert [gap for gap in report.coverage.gaps if gap.what.startswith("restoring")] == []


def test_what_a_hook_collects_is_the_users():
    seen: list[int] = []
    model = Net()
    model.first.register_forward_hook(lambda module, args, output: seen.append(1))
    leadline.trace(case_of(model))
    assert seen == [1]
