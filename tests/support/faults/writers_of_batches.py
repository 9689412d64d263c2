"""More programs for `writers.PROGRAMS`: they write to their batch, to flags of the process or in their loss."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from leadline import Case
from tests.support.faults.writers import Net, Program, case_of, habit, program

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
