"""Random models: modules and functions in any order, branches, shared parts, odd types, habits of real code.

A `Plan` is data, so a failing one prints as code; `build` makes the same model from it every time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from leadline import Case

WIDTH, BATCH = 4, 3
DTYPES = ("float32", "float64", "bfloat16")
MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "in-place relu": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.3),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "add in place": lambda x: x.clone().add_(0.5).mul_(0.9),
    "gate": lambda x: torch.cat([part.sigmoid() * other for part, other in [x.chunk(2, -1)]] * 2, -1),
    "attend": lambda x: (x @ x.mT).softmax(-1) @ x,
    "einsum": lambda x: torch.einsum("bi,bj->bj", x, x) / WIDTH,
    "views": lambda x: x.unsqueeze(1).transpose(1, 2).flatten(1),
    "cut": lambda x: x + x.detach().tanh(),
    "noise": lambda x: x + 0.01 * torch.rand_like(x) + random.random() * 0.0,
    "numpy noise": lambda x: x * (1 + 0.0 * float(numpy.random.rand())),
    "where": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "item": lambda x: x * (1.0 if float(x.detach().sum()) > 0 else 0.5),
    "upcast": lambda x: x.double().square().to(x.dtype),
}
# A checkpoint of torch 2.6 that fails leaves its hooks to all that follows, as long as the frames of the error live.
WRAPPERS = (
    "",
    "residual",
    "twice",
    "twice" if torch.__version__ < TorchVersion("2.7") else "checkpoint",
    "no hooks",
)
HABITS = (
    "counts",
    "keeps",
    "output hook",
    "tensor hook",
    "pre-hook",
    "parameter hook",
    "frozen",
    "eval",
    "gradients",
)


@dataclass(frozen=True)
class Stage:
    part: str
    wrapper: str = ""


@dataclass(frozen=True)
class Plan:
    stages: tuple[Stage, ...]
    shared: bool = False
    """The first linear map is used again at the end."""
    dtype: str = "float32"
    habits: frozenset[str] = frozenset()
    optimizer: str = "SGD"


PLANS = st.builds(
    Plan,
    stages=st.lists(
        st.builds(Stage, st.sampled_from([*MODULES, *FUNCTIONS]), st.sampled_from(WRAPPERS)),
        min_size=1,
        max_size=6,
    ).map(tuple),
    shared=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    habits=st.frozensets(st.sampled_from(HABITS), max_size=4),
    optimizer=st.sampled_from(["SGD", "AdamW", "LBFGS"]),
)


class Fuse:
    """Counts what happens in a model, forward and backward, and raises `accident` at the event number `at`."""

    def __init__(self, at: int | None = None, accident: BaseException | None = None) -> None:
        self.at, self.accident, self.events = at, accident, 0
        self.lock = threading.Lock()  # what has a lock is not put back, so all passes of a verb are counted

    def burn(self) -> None:
        self.events += 1
        if self.events == self.at and self.accident is not None:
            raise self.accident

    def __deepcopy__(self, memo: object) -> Fuse:
        """Copies of a model burn the same fuse."""
        return self


class Counting(TorchFunctionMode):
    """Every torch call of the model is an event."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def __torch_function__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.fuse.burn()
        return func(*args, **(kwargs or {}))


class Crossing(torch.autograd.Function):
    """The identity; that its gradient passes is an event."""

    @staticmethod
    def forward(ctx, x: Tensor, fuse: Fuse) -> Tensor:
        ctx.fuse = fuse
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.fuse.burn()
        return gradient, None


class Model(nn.Module):
    def __init__(self, plan: Plan, fuse: Fuse) -> None:
        super().__init__()
        self.plan, self.fuse = plan, fuse
        self.first = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(
            MODULES[stage.part]() if stage.part in MODULES else nn.Identity() for stage in plan.stages
        )
        self.head = nn.Linear(WIDTH, 2)
        self.calls, self.kept = 0, None
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with Counting(self.fuse):
            return self.run(x)

    def run(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for stage, part in zip(self.plan.stages, self.parts, strict=True):
            x = Crossing.apply(self.stage(stage, part, x), self.fuse)
        if self.plan.shared:
            x = self.first(x)
        if "counts" in self.plan.habits:
            self.calls += 1
            self.seen += 1
        if "keeps" in self.plan.habits:
            self.kept = x
        return self.head(x)

    def stage(self, stage: Stage, part: nn.Module, x: Tensor) -> Tensor:
        do = part if stage.part in MODULES else FUNCTIONS[stage.part]
        if stage.wrapper == "residual":
            return x + do(x.clone())
        if stage.wrapper == "twice":
            return do(do(x.clone()).clone())
        if stage.wrapper == "checkpoint":
            return checkpoint(lambda given: do(given.clone()), x, use_reentrant=False)
        return part.forward(x.clone()) if stage.wrapper == "no hooks" and do is part else do(x.clone())


def build(plan: Plan, fuse: Fuse | None = None) -> Case:
    """The same model, batch and optimizer on every call."""
    torch.manual_seed(3)
    dtype = getattr(torch, plan.dtype)
    model = Model(plan, fuse or Fuse()).to(dtype)
    _take_up(model, plan.habits)
    moved = [each for each in model.parameters() if each.requires_grad]
    optimizer = getattr(torch.optim, plan.optimizer)(moved, lr=0.01)
    x, y = torch.randn(BATCH, WIDTH, dtype=dtype), torch.tensor([0, 1, 0])
    if "gradients" in plan.habits:
        for parameter in moved[::2]:
            parameter.grad = torch.full_like(parameter, 0.25)
    return Case(model, x, y, F.cross_entropy, optimizer)


def _take_up(model: Model, habits: frozenset[str]) -> None:
    if "output hook" in habits:
        model.first.register_forward_hook(lambda module, args, output: output * 1.5)
    if "tensor hook" in habits:
        model.first.register_forward_hook(_listen)
    if "pre-hook" in habits:
        model.head.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    if "parameter hook" in habits:
        model.head.weight.register_hook(lambda gradient: gradient * 0.5)
    if "frozen" in habits:
        model.first.requires_grad_(requires_grad=False)
    if "eval" in habits:
        model.eval()


def _listen(module: nn.Module, args: object, output: Tensor) -> None:
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.clone())
