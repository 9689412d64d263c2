"""Small trainable programs that write to their own state, their parameters, their batch or the process.

Each is what some real program does: moving averages, memory banks, replay buffers, counters, schedules inside a
module, statistics in NumPy, custom backward functions. `PROGRAMS` holds them by name.
"""

from __future__ import annotations

import array
import collections
import ctypes
import functools
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
from torch.nn.utils import parametrizations
from torch.utils import dlpack

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


# NumPy and generators.


@habit("a NumPy array", array=lambda: numpy.zeros(4))
def _numpy(model: Any, x: Tensor) -> None:
    model.array += x.detach().mean(0).numpy()


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


# The batch.


@program("inputs in an object that is written")
def _object_inputs() -> Case:
    class Batch:
        def __init__(self) -> None:
            self.features, self.uses = torch.randn(6, 4), 0

    def use(model: Any, batch: Batch) -> None:
        batch.uses += 1
        batch.features.add_(0.5)

    return case_of(Net(use), (Batch(),))


@dataclass
class Graph:
    features: numpy.ndarray
    steps: list[int]


@program("inputs in a dataclass of NumPy arrays")
def _dataclass_inputs() -> Case:
    def use(model: Any, graph: Graph) -> None:
        graph.features[0] += 1
        graph.steps.append(1)

    return case_of(Net(use), (Graph(numpy.random.default_rng(0).normal(size=(6, 4)).astype("float32"), []),))


@program("an input array that is normalized in place")
def _numpy_inputs() -> Case:
    def use(model: Any, x: numpy.ndarray) -> None:
        x /= 1 + abs(x).max()

    return case_of(Net(use), (numpy.random.default_rng(0).normal(size=(6, 4)).astype("float32"),))


@program("an input tensor that is changed in place")
def _inputs_in_place() -> Case:
    return case_of(Net(lambda model, x: x.mul_(0.5)))


@program("an input tensor that is changed through NumPy")
def _inputs_through_numpy() -> Case:
    def use(model: Any, x: Tensor) -> None:
        x.numpy()[0] += 1

    return case_of(Net(use))


class TakesOptions(Net):
    def forward(self, x: Tensor, options: dict[str, Any]) -> Tensor:  # type: ignore[override]
        options["calls"] = options.get("calls", 0) + 1
        options.pop("once", None)
        return super().forward(x)


@program("options in the inputs that are consumed")
def _dict_inputs() -> Case:
    return case_of(TakesOptions(), {"x": torch.randn(6, 4), "options": {"once": True}})


@program("targets that the loss changes")
def _targets_in_place() -> Case:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        targets.clamp_(-0.5, 0.5)
        return (output - targets).square().mean()

    return case_of(Net(), loss=loss)


@program("targets in an array that the loss changes")
def _target_array() -> Case:
    def loss(output: Tensor, targets: numpy.ndarray) -> Tensor:
        targets *= 0.9
        return (output - torch.from_numpy(targets)).square().mean()

    return case_of(Net(), targets=numpy.ones((6, 2), dtype="float32"), loss=loss)


# Flags of the process.


@habit("the number of threads")
def _threads(model: Any, x: Tensor) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


@habit("deterministic algorithms")
def _deterministic(model: Any, x: Tensor) -> None:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


@habit("anomaly detection")
def _anomaly(model: Any, x: Tensor) -> None:
    torch.autograd.set_detect_anomaly(mode=True, check_nan=False)


@habit("the precision of matrix products")
def _precision(model: Any, x: Tensor) -> None:
    torch.set_float32_matmul_precision("medium")


@program("gradients that the loss turns off")
def _grad_mode() -> Case:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        value = functional.mse_loss(output, targets)
        torch.set_grad_enabled(False)
        return value

    return case_of(Net(), loss=loss)


@habit("the default dtype")
def _default_dtype(model: Any, x: Tensor) -> None:
    torch.set_default_dtype(torch.float64)


@program("autocast that the loss turns on")
def _autocast() -> Case:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        value = functional.mse_loss(output, targets)
        torch.set_autocast_enabled("cpu", enabled=True)
        return value

    return case_of(Net(), loss=loss)


@habit("a flag of a backend")
def _backend(model: Any, x: Tensor) -> None:
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark


@habit("global seeds")
def _seeds(model: Any, x: Tensor) -> None:
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)


# State of the loss.


@program("a loss that counts in a closure")
def _loss_closure() -> Program:
    state = {"steps": 0, "mean": torch.zeros(2)}

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        state["steps"] += 1
        state["mean"].lerp_(output.detach().mean(0), 0.1)
        return functional.mse_loss(output, targets)

    return Program(case=case_of(Net(), loss=loss))


@program("a loss with a nonlocal weight")
def _loss_nonlocal() -> Program:
    weight = 1.0

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        nonlocal weight
        weight *= 0.99
        return weight * functional.mse_loss(output, targets)

    return Program(case=case_of(Net(), loss=loss))


class CenterLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(2))
        self.calls = 0

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        self.center = 0.9 * self.center + 0.1 * output.detach().mean(0)
        return (output - targets - self.center).square().mean()


@program("a loss that is a module with a buffer")
def _loss_module() -> Program:
    loss = CenterLoss()
    return Program(case=case_of(Net(), loss=loss))


class Focal:
    def __init__(self) -> None:
        self.history: list[float] = []
        self.scale = torch.ones(())

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        value = functional.mse_loss(output, targets)
        self.history.append(float(value.detach()))
        self.scale.mul_(0.9)
        return value * self.scale

    def method(self, output: Tensor, targets: Tensor) -> Tensor:
        return self(output, targets)


@program("a loss that is an object")
def _loss_object() -> Program:
    loss = Focal()
    return Program(case=case_of(Net(), loss=loss))


@program("a loss that is a method of an object")
def _loss_method() -> Program:
    loss = Focal()
    return Program(case=case_of(Net(), loss=loss.method))


@program("a loss with bound arguments")
def _loss_partial() -> Program:
    def loss(history: list[float], output: Tensor, targets: Tensor) -> Tensor:
        history.append(1.0)
        return functional.mse_loss(output, targets)

    bound = functools.partial(loss, [])
    return Program(case=case_of(Net(), loss=bound))


# Buffers.


class WithBuffer(Net):
    def __init__(self, habit: Habit, buffer: Tensor) -> None:
        super().__init__(habit)
        self.register_buffer("buffer", buffer)


def buffered(name: str, make: Callable[[], Tensor]) -> Callable[[Habit], Habit]:
    def add(function: Habit) -> Habit:
        program(name)(lambda: WithBuffer(function, make()))
        return function

    return add


@buffered("a buffer that changes its dtype", lambda: torch.zeros(4))
def _buffer_dtype(model: Any, x: Tensor) -> None:
    model.buffer = model.buffer.double() + 1


@buffered("a buffer whose data changes its dtype", lambda: torch.zeros(4))
def _buffer_data_dtype(model: Any, x: Tensor) -> None:
    model.buffer.data = model.buffer.data.to(torch.float64)


@buffered("a buffer that is swapped", lambda: torch.zeros(4))
def _buffer_swapped(model: Any, x: Tensor) -> None:
    model.buffer.add_(1)
    model.buffer = x.detach().mean(0)


@buffered("a buffer that grows", lambda: torch.ones(2, 4))
def _buffer_grows(model: Any, x: Tensor) -> None:
    model.buffer.resize_(len(model.buffer) + 1, 4).fill_(2)


@buffered("a buffer with a negative zero", lambda: torch.full((4,), -0.0))
def _buffer_zero(model: Any, x: Tensor) -> None:
    model.buffer.copy_(torch.zeros(4))


@buffered(
    "a buffer with a NaN of its own",
    lambda: torch.tensor([0x7FC12345, 0], dtype=torch.int32).view(torch.float32),
)
def _buffer_nan(model: Any, x: Tensor) -> None:
    model.buffer.fill_(float("nan"))


@buffered("a buffer that keeps its graph", lambda: torch.zeros(8))
def _buffer_graph(model: Any, x: Tensor) -> None:
    model.buffer = 0.9 * model.buffer.detach() + model.first(x).mean(0)


@buffered("a buffer that is changed in place with its graph", lambda: torch.zeros(8))
def _buffer_graph_in_place(model: Any, x: Tensor) -> None:
    model.buffer = model.buffer.detach()
    model.buffer.add_(model.first(x).mean(0))


@buffered("a buffer that is changed through its storage", lambda: torch.zeros(4))
def _buffer_storage(model: Any, x: Tensor) -> None:
    model.buffer.untyped_storage()[0] = (model.buffer.untyped_storage()[0] + 1) % 256


@buffered("a buffer that is removed and added", lambda: torch.zeros(4))
def _buffer_removed(model: Any, x: Tensor) -> None:
    del model.buffer
    model.register_buffer("other", torch.ones(2))
    model.register_buffer("buffer", torch.ones(4))


@buffered("a transposed buffer", lambda: torch.zeros(3, 2).T)
def _buffer_transposed(model: Any, x: Tensor) -> None:
    model.buffer += 1


@buffered("an integer buffer", lambda: torch.zeros((), dtype=torch.long))
def _buffer_integer(model: Any, x: Tensor) -> None:
    torch.ops.aten.add_(model.buffer, 1)


@program("batch statistics")
def _batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


@program("a spectral norm")
def _spectral_norm() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))


# Parameters.


def writes(name: str) -> Callable[[Callable[[Tensor], object]], Callable[[Tensor], object]]:
    """Collect a program that writes to one of its weights in the forward pass."""

    def add(write: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
        program(name)(lambda: Net(lambda model, x: write(model.first.weight)))
        return write

    return add


@writes("a weight through NumPy")
def _weight_numpy(weight: Tensor) -> None:
    weight.detach().numpy()[0] *= 0.999


@writes("a weight through DLPack")
def _weight_dlpack(weight: Tensor) -> None:
    dlpack.from_dlpack(dlpack.to_dlpack(weight.detach()))[0].mul_(0.999)


@writes("a weight through its storage")
def _weight_storage(weight: Tensor) -> None:
    torch.empty(0).set_(weight.untyped_storage())[0] += 0.001


@writes("a weight through its address")
def _weight_address(weight: Tensor) -> None:
    (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())[0] = 0.125


@writes("a weight through torch.ops")
def _weight_ops(weight: Tensor) -> None:
    torch.ops.aten.mul_(weight.detach(), 0.999)


@writes("a weight through nn.init")
def _weight_init(weight: Tensor) -> None:
    with torch.no_grad():
        nn.init.trunc_normal_(weight[:1], std=0.02)


@writes("a weight through data")
def _weight_data(weight: Tensor) -> None:
    weight.data.mul_(0.999)


@writes("a weight through new data")
def _weight_new_data(weight: Tensor) -> None:
    weight.data = weight.data * 0.999


@writes("a weight through a foreach op")
def _weight_foreach(weight: Tensor) -> None:
    torch._foreach_mul_([weight.detach()], 0.999)


@writes("a weight through a strided view")
def _weight_strided(weight: Tensor) -> None:
    torch.as_strided(weight.detach(), (2,), (4,)).add_(0.001)


@writes("a weight through an out argument")
def _weight_out(weight: Tensor) -> None:
    torch.mul(weight.detach(), 0.999, out=weight.detach())


@writes("a weight whose gradient flag flips")
def _weight_flag(weight: Tensor) -> None:
    weight.requires_grad_(not weight.requires_grad)


@writes("a weight whose gradient is set")
def _weight_grad(weight: Tensor) -> None:
    weight.grad = torch.ones_like(weight)


@writes("a weight that gets a hook in every pass")
def _weight_hook(weight: Tensor) -> None:
    weight.register_hook(lambda gradient: gradient * 0.5)


@writes("a weight that gets an attribute")
def _weight_attribute(weight: Any) -> None:
    weight.calls = getattr(weight, "calls", 0) + 1


@program("a weight with a negative zero")
def _weight_zero() -> nn.Module:
    model = Net(lambda model, x: model.first.bias.data.add_(0.0))
    model.first.bias.data.fill_(-0.0)
    return model


@program("weights that a tensor hook writes")
def _weight_tensor_hook() -> nn.Module:
    model = Net()

    def shrink(gradient: Tensor) -> None:
        model.second.weight.data.mul_(0.999)

    model.first.weight.register_hook(shrink)
    return model


class WritesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.weight.data.numpy()[0] += 0.001
        return gradient, None


class BackwardWriter(Net):
    def forward(self, x: Tensor) -> Tensor:
        return WritesBackward.apply(super().forward(x), self.first.weight)


program("weights that a backward function writes")(BackwardWriter)


@program("weights that a backward hook writes")
def _weight_backward_hook() -> nn.Module:
    model = Net()

    def shrink(module: nn.Module, before: Any, after: Any) -> None:
        torch.ops.aten.mul_(module.weight.detach(), 0.999)

    model.second.register_full_backward_hook(shrink)
    return model


class NativeBatchNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = torch.ops.aten.native_batch_norm(
            hidden, None, None, self.mean, self.variance, bool(1), 0.1, 1e-5
        )[0]
        return self.second(torch.relu(hidden))


program("parameters that a native batch norm writes")(NativeBatchNorm)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.bias.add_(0.001)
        return self.linear(x)


@program("a ScriptModule that writes its weights")
def _scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(Scripted()))


@program("an embedding with a largest norm")
def _embedding() -> Case:
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 2))
    return case_of(model, torch.randint(0, 5, (6, 2)))


@habit("weights that are replaced by new parameters")
def _weight_replaced(model: Any, x: Tensor) -> None:
    model.second.weight = nn.Parameter(model.second.weight.detach() * 0.999)


@habit("a submodule whose mode changes")
def _mode(model: Any, x: Tensor) -> None:
    model.first.eval()


@habit("a submodule that is added")
def _added(model: Any, x: Tensor) -> None:
    model.add_module("extra", nn.Linear(2, 2))


@habit("a submodule that is replaced")
def _replaced(model: Any, x: Tensor) -> None:
    model.first = nn.Linear(4, 8)


@habit("a hook that every forward pass registers")
def _registers(model: Any, x: Tensor) -> None:
    model.second.register_forward_pre_hook(lambda module, args: None)


@program("an averaged copy of the model")
def _ema_copy() -> nn.Module:
    def average(model: Any, x: Tensor) -> None:
        with torch.no_grad():
            for mean, now in zip(model.teacher[0].parameters(), model.first.parameters(), strict=True):
                mean.lerp_(now, 0.1)

    return Net(average, teacher=[nn.Linear(4, 8)])


@program("a learning rate that the model changes")
def _rate() -> Case:
    case = case_of(Net(lambda model, x: model.decay()))

    def decay() -> None:
        case.optimizer.param_groups[0]["lr"] *= 0.5

    case.model.decay = decay
    return case


@program("an optimizer that the model holds")
def _holds_optimizer() -> Case:
    def count(model: Any, x: Tensor) -> None:
        defaults = model.held["optimizer"].defaults
        defaults["calls"] = defaults.get("calls", 0) + 1

    case = case_of(Net(count))
    case.model.held = {"optimizer": case.optimizer}
    return case
