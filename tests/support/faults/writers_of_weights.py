"""More programs for `writers.PROGRAMS`: they write to their buffers and parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import dlpack

from leadline import Case
from tests.support.faults.writers import Habit, Net, case_of, habit, program

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
