"""Small trainable programs that write to their own state, their parameters, their batch or the process.

Each is what some real program does: moving averages, memory banks, replay buffers, counters, schedules inside a
module, statistics in NumPy, custom backward functions. `PROGRAMS` holds them by name.
"""

from __future__ import annotations

import array
import collections
import io
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from leadline import Case

Habit = Callable[[Any, Any], object]


@dataclass(kw_only=True)
class Program:
    """A case, and further objects that it writes to."""

    case: Case
    others: dict[str, Any] = field(default_factory=dict)


PROGRAMS: dict[str, Callable[[], Program]] = {}


class Net(nn.Module):
    """Two layers and a habit: something that every forward pass does first."""

    def __init__(self, habit: Habit | None = None, **state: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.habit = habit
        for name, value in state.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Tensor:
        if self.habit is not None:
            self.habit(self, x)
        return self.second(torch.relu(self.first(features_of(x))))


def features_of(x: Any) -> Tensor:
    x = getattr(x, "features", x)
    return torch.from_numpy(x) if isinstance(x, numpy.ndarray) else x


def case_of(model: nn.Module, inputs: Any = None, targets: Any = None, loss: Any = None) -> Case:
    inputs = torch.randn(6, 4) if inputs is None else inputs
    targets = torch.randn(6, 2) if targets is None else targets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Case(model, inputs, targets, functional.mse_loss if loss is None else loss, optimizer)


def program(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Collect a function that returns a Program, a Case, or a model."""

    def add(build: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Program:
            torch.manual_seed(0)
            built = build()
            if isinstance(built, nn.Module):
                built = case_of(built)
            return built if isinstance(built, Program) else Program(case=built)

        PROGRAMS[name] = made
        return build

    return add


def habit(name: str, **state: Callable[[], Any]) -> Callable[[Habit], Habit]:
    """Collect a program whose forward pass calls the function with the model and the inputs."""

    def add(function: Habit) -> Habit:
        program(name)(lambda: Net(function, **{key: make() for key, make in state.items()}))
        return function

    return add


# Tensors that are plain attributes, or inside something else.


@habit("a moving average in a plain tensor", average=lambda: torch.zeros(4))
def _average(model: Any, x: Tensor) -> None:
    model.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)


@habit("a memory bank with a position", bank=lambda: torch.zeros(16, 4), position=lambda: 0)
def _bank(model: Any, x: Tensor) -> None:
    rows = torch.arange(model.position, model.position + len(x)) % 16
    model.bank[rows] = x.detach()
    model.position = (model.position + len(x)) % 16


@habit("tensors in a list", traces=lambda: [torch.zeros(4), torch.zeros(4)])
def _tensors_in_list(model: Any, x: Tensor) -> None:
    for each in model.traces:
        each.add_(x.detach().sum(0))


@habit("tensors in nested dicts", nested=lambda: {"a": {"b": {"c": {"d": {"e": {"f": torch.zeros(2)}}}}}})
def _tensors_in_dicts(model: Any, x: Tensor) -> None:
    model.nested["a"]["b"]["c"]["d"]["e"]["f"] += 1


@habit("tensors in a tuple", pair=lambda: (torch.zeros(3), torch.zeros(3)))
def _tensors_in_tuple(model: Any, x: Tensor) -> None:
    model.pair[1].sub_(1)


@habit("a queue of past features", queue=lambda: collections.deque([torch.zeros(4)] * 3, maxlen=3))
def _queue(model: Any, x: Tensor) -> None:
    model.queue[0].add_(1)
    model.queue.append(x.detach().mean(0))


@dataclass
class Statistics:
    mean: Tensor = field(default_factory=lambda: torch.zeros(4))
    count: int = 0


@habit("a dataclass of statistics", statistics=Statistics)
def _dataclass(model: Any, x: Tensor) -> None:
    model.statistics.mean.lerp_(x.detach().mean(0), 0.5)
    model.statistics.count += len(x)


class Slotted:
    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, torch.zeros(())


@habit("an object with slots", meter=Slotted)
def _slots(model: Any, x: Tensor) -> None:
    model.meter.count += 1
    model.meter.total += x.detach().sum()


@habit("a plain tensor that is resized", cache=lambda: torch.zeros(2))
def _resized(model: Any, x: Tensor) -> None:
    model.cache.resize_(model.cache.numel() + 2).fill_(1)


@habit("a plain tensor whose data is replaced", cache=lambda: torch.zeros(2))
def _data_replaced(model: Any, x: Tensor) -> None:
    model.cache.data = model.cache.data + 1


@habit("a plain tensor that is set to other memory", cache=lambda: torch.zeros(2))
def _set(model: Any, x: Tensor) -> None:
    model.cache.set_(torch.ones(3))


@habit("a leaf outside the module that collects gradients", scale=lambda: torch.ones(4, requires_grad=True))
def _leaf(model: Any, x: Tensor) -> None:
    (model.scale * x.detach()).sum().backward()


@habit("a hidden state with its graph", hidden=lambda: torch.zeros(6, 8))
def _hidden(model: Any, x: Tensor) -> None:
    model.hidden = torch.tanh(model.first(x) + model.hidden)


@habit("a hidden state that is detached and overwritten", hidden=lambda: torch.zeros(6, 8))
def _hidden_copied(model: Any, x: Tensor) -> None:
    model.hidden.copy_(torch.tanh(model.first(x) + model.hidden).detach())


@habit("a sparse tensor", table=lambda: torch.eye(3).to_sparse())
def _sparse(model: Any, x: Tensor) -> None:
    model.table.mul_(2)


class HalfFilled:
    """One slot is empty until the first pass, which empties the other."""

    __slots__ = ("before", "since")

    def __init__(self) -> None:
        self.before = torch.zeros(2)


@habit("slots that are filled and emptied", meter=HalfFilled)
def _filled_slots(model: Any, x: Tensor) -> None:
    if hasattr(model.meter, "before"):
        model.meter.since = model.meter.before + 1
        del model.meter.before


class Counts(dict[str, int]):
    """A dict with an attribute, as a counter with a total has."""

    total = 0


@habit("a dict of its own class, empty at first", counts=Counts)
def _own_dict(model: Any, x: Tensor) -> None:
    model.counts["seen"] = model.counts.get("seen", 0) + len(x)
    model.counts.total += len(x)


class History(list[int]):
    """A list with an attribute."""

    total = 0


@habit("a list of its own class", history=lambda: History([0]))
def _own_list(model: Any, x: Tensor) -> None:
    model.history.append(len(x))
    model.history.total += len(x)


# NumPy and generators.


@habit("a NumPy array", array=lambda: numpy.zeros(4))
def _numpy(model: Any, x: Tensor) -> None:
    model.array += x.detach().mean(0).numpy()


@habit("a NumPy array that is read as integers", array=lambda: numpy.zeros(4))
def _numpy_dtype(model: Any, x: Tensor) -> None:
    model.array.dtype = numpy.int64
    model.array += 1


@habit("a NumPy array that is resized", array=lambda: numpy.zeros(4))
def _numpy_resized(model: Any, x: Tensor) -> None:
    model.array.resize((2, 3), refcheck=False)


@habit("a NumPy array that is written once and locked", array=lambda: numpy.zeros(4))
def _numpy_locked(model: Any, x: Tensor) -> None:
    if model.array.flags.writeable:
        model.array += x.detach().mean(0).numpy()
        model.array.setflags(write=False)


@habit("a NumPy array that is locked as it is", array=lambda: numpy.zeros(4))
def _numpy_only_locked(model: Any, x: Tensor) -> None:
    model.array.setflags(write=False)


@habit("a NumPy array of objects", array=lambda: numpy.array([{"seen": 0}, None], dtype=object))
def _numpy_objects(model: Any, x: Tensor) -> None:
    model.array[0]["seen"] += 1
    model.array[1] = len(x)


@habit("a NumPy RandomState", generator=lambda: numpy.random.RandomState(0))
def _random_state(model: Any, x: Tensor) -> None:
    model.generator.rand()


@habit("a NumPy Generator in a dict", generators=lambda: {"noise": numpy.random.default_rng(0)})
def _default_rng(model: Any, x: Tensor) -> None:
    model.generators["noise"].normal()


@habit("a generator of Python", generator=lambda: random.Random(0))
def _python_random(model: Any, x: Tensor) -> None:
    model.generator.random()


@habit("a torch generator", generator=lambda: torch.Generator().manual_seed(0))
def _torch_generator(model: Any, x: Tensor) -> None:
    torch.rand(1, generator=model.generator)


@dataclass
class Augmentation:
    generator: torch.Generator = field(default_factory=torch.Generator)


@habit("a torch generator in a dataclass", augmentation=Augmentation)
def _augmentation(model: Any, x: Tensor) -> None:
    torch.rand(1, generator=model.augmentation.generator)


GENERATOR = torch.Generator().manual_seed(3)
ARRAYS = {"seen": numpy.zeros(2), "calls": 0}
TOTAL = 0


@program("a torch generator of the file")
def _file_generator() -> Program:
    model = Net(lambda model, x: torch.rand(1, generator=GENERATOR))
    return Program(case=case_of(model), others={"generator": GENERATOR})


@program("a dict of the file")
def _file_dict() -> Program:
    def note(model: Any, x: Tensor) -> None:
        ARRAYS["seen"] += 1
        ARRAYS["calls"] += 1

    return Program(case=case_of(Net(note)), others={"arrays": ARRAYS})


class GlobalCounter(Net):
    def forward(self, x: Tensor) -> Tensor:
        global TOTAL
        TOTAL += 1
        return super().forward(x)


@program("a number of the file")
def _file_number() -> Program:
    return Program(case=case_of(GlobalCounter()), others={"file": TotalOfFile()})


class TotalOfFile:
    """Reads the number each time it is looked at."""

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"total": TOTAL}


def _helper(x: Tensor) -> None:
    ARRAYS["seen"][0] += float(x.sum())


class CallsHelper(Net):
    def forward(self, x: Tensor) -> Tensor:
        _helper(x.detach())
        return super().forward(x)


@program("a helper function that writes to the file's state")
def _file_helper() -> Program:
    return Program(case=case_of(CallsHelper()), others={"arrays": ARRAYS})


# Counters and containers.


@habit("a number", calls=lambda: 0)
def _number(model: Any, x: Tensor) -> None:
    model.calls += 1


class Meter:
    def __init__(self) -> None:
        self.history: list[float] = []
        self.child: Meter | None = None


@habit("a meter inside a meter", meter=Meter)
def _meter(model: Any, x: Tensor) -> None:
    model.meter.history.append(float(x.detach().mean()))
    model.meter.child = model.meter.child or Meter()
    model.meter.child.history.append(1.0)


@habit("a Counter", seen=collections.Counter)
def _counter(model: Any, x: Tensor) -> None:
    model.seen.update(["batch", len(x)])


@habit("a defaultdict", log=lambda: collections.defaultdict(list))
def _defaultdict(model: Any, x: Tensor) -> None:
    model.log["mean"].append(float(x.detach().mean()))


@habit("a least recently used order", order=lambda: collections.OrderedDict.fromkeys("abc"))
def _order(model: Any, x: Tensor) -> None:
    model.order.move_to_end("a")


@habit("a set", seen=lambda: {1, 2})
def _set_of_numbers(model: Any, x: Tensor) -> None:
    model.seen.add(len(model.seen) + 5)


@habit("a bytearray", log=lambda: bytearray(b"start"))
def _bytearray(model: Any, x: Tensor) -> None:
    model.log.extend(b".")


@habit("an array of the standard library", log=lambda: array.array("d", [0.0]))
def _array(model: Any, x: Tensor) -> None:
    model.log.append(1.0)


@habit("a text buffer", log=io.StringIO)
def _text(model: Any, x: Tensor) -> None:
    model.log.write("called\n")


@habit("a weak dictionary", registry=weakref.WeakValueDictionary)
def _weak(model: Any, x: Tensor) -> None:
    model.registry[len(model.registry)] = model.first


class ClassCounter(Net):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return super().forward(x)


program("a counter of the class")(ClassCounter)


@program("a counter on a function")
def _function_attribute() -> Program:
    def note(model: Any, x: Tensor) -> None:
        note.calls += 1  # type: ignore[attr-defined]

    note.calls = 0  # type: ignore[attr-defined]
    return Program(case=case_of(Net(note)), others={"function": note})


@program("a list among the defaults of a function")
def _default_argument() -> Program:
    def note(model: Any, x: Tensor, seen: list[int] = []) -> None:  # noqa: B006
        seen.append(len(x))

    return Program(case=case_of(Net(note)), others={"function": note})


@habit("a submodule that is not registered", hidden=lambda: [nn.BatchNorm1d(4)])
def _unregistered(model: Any, x: Tensor) -> None:
    model.hidden[0](x)


@habit("a module that refers to its parent", parents=list)
def _cycle(model: Any, x: Tensor) -> None:
    model.parents.append(model)


@habit("an attribute that appears")
def _appears(model: Any, x: Tensor) -> None:
    model.last_inputs = x


@habit("an attribute that disappears", warm_up=lambda: 3)
def _disappears(model: Any, x: Tensor) -> None:
    if hasattr(model, "warm_up"):
        del model.warm_up
