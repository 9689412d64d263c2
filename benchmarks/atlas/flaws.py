"""What is changed about a family: from harmless to fatal. Each flaw changes one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from benchmarks.atlas.problem import Batch, Kind, Knobs, Setup

Change = Callable[[Setup], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    name: str
    group: str
    change: Change = lambda setup: None
    knobs: Knobs = field(default_factory=Knobs)
    needs: frozenset[str] = frozenset()
    """Knobs that a family must understand."""
    kinds: frozenset[Kind] = frozenset({"classes", "numbers", "own"})
    optimizers: frozenset[str] = frozenset({"adam", "adamw", "sgd"})
    repairable: bool = True
    """Whether an edit of the network or the optimizer can repair it; not if it is in the loss or the data."""


FLAWS: dict[str, Flaw] = {}


def flaw(name: str, group: str, change: Change = lambda setup: None, **options: object) -> None:
    FLAWS[name] = Flaw(name=name, group=group, change=change, **options)  # type: ignore[arg-type]


def structural(name: str, group: str, *needs: str, **knobs: object) -> None:
    FLAWS[name] = Flaw(name=name, group=group, knobs=Knobs(**knobs), needs=frozenset(needs))  # type: ignore[arg-type]


# Rates and optimizers


def rate(factor: float) -> Change:
    def change(setup: Setup) -> None:
        setup.recipe = replace(setup.recipe, lr=setup.recipe.lr * factor)

    return change


def optimizer(name: str, lr: float, **options: object) -> Change:
    def change(setup: Setup) -> None:
        setup.recipe = replace(setup.recipe, name=name, lr=lr, options=dict(options))

    return change


def option(**options: object) -> Change:
    def change(setup: Setup) -> None:
        setup.recipe = replace(setup.recipe, options={**setup.recipe.options, **options})

    return change


ADAM = frozenset({"adam", "adamw"})
for factor in (0.5, 2, 4, 0.1, 0.01, 1e-3, 1e-4, 10, 30, 100, 1000):
    flaw(f"rate x{factor:g}", "learning rate", rate(factor))
flaw("SGD 0.1 with momentum", "optimizer", optimizer("sgd", 0.1, momentum=0.9))
flaw("SGD 1e-3", "optimizer", optimizer("sgd", 1e-3))
flaw("SGD 3.0", "optimizer", optimizer("sgd", 3.0))
flaw("Adam 1e-3", "optimizer", optimizer("adam", 1e-3))
flaw("RMSprop 1e-3", "optimizer", optimizer("rmsprop", 1e-3))
flaw("Adam eps 1", "optimizer", option(eps=1.0), optimizers=ADAM)
flaw("Adam eps 1e-4", "optimizer", option(eps=1e-4), optimizers=ADAM)
flaw("Adam betas 0.99 0.9", "optimizer", option(betas=(0.99, 0.9)), optimizers=ADAM)
flaw("SGD momentum 0.999", "optimizer", option(momentum=0.999), optimizers=frozenset({"sgd"}))
flaw("Adam beta1 0.999", "optimizer", option(betas=(0.999, 0.999)), optimizers=ADAM)
for decay in (0.01, 1.0):
    flaw(f"coupled decay {decay:g}", "weight decay", optimizer("adam", 3e-3, weight_decay=decay))
for decay in (0.1, 10.0, 100.0):
    flaw(f"decoupled decay {decay:g}", "weight decay", optimizer("adamw", 3e-3, weight_decay=decay))
flaw("SGD decay 0.1", "weight decay", optimizer("sgd", 0.05, momentum=0.9, weight_decay=0.1))


# Which parameters learn


def choose(pick: Callable[[list[nn.Parameter]], Iterable[nn.Parameter]]) -> Change:
    def change(setup: Setup) -> None:
        setup.recipe = replace(
            setup.recipe, choose=lambda model: pick([p for p in model.parameters() if p.requires_grad])
        )

    return change


def freeze(share: float) -> Change:
    """Freeze this share of the trainable tensors, from the input on."""

    def change(setup: Setup) -> None:
        trainable = [each for each in setup.model.parameters() if each.requires_grad]
        for each in trainable[: round(share * len(trainable))]:
            each.requires_grad_(requires_grad=False)
        setup.recipe = replace(
            setup.recipe, choose=lambda model: [each for each in model.parameters() if each.requires_grad]
        )

    return change


def matrices_only(found: list[nn.Parameter]) -> list[nn.Parameter]:
    return [each for each in found if each.dim() > 1] or found


flaw("optimizer holds the last tensor", "optimizer holds few", choose(lambda found: found[-1:]))
flaw("optimizer holds the first two tensors", "optimizer holds few", choose(lambda found: found[:2]))
flaw("optimizer holds half", "optimizer holds few", choose(lambda found: found[: max(1, len(found) // 2)]))
flaw("optimizer without biases and gains", "optimizer holds few", choose(matrices_only))
flaw(
    "optimizer holds only biases and gains",
    "optimizer holds few",
    choose(lambda found: [each for each in found if each.dim() < 2] or found[-1:]),
)
flaw("random backbone frozen", "frozen", freeze(0.9))
flaw("first half frozen", "frozen", freeze(0.5))
flaw("first tensor frozen", "frozen", freeze(0.1))


# Initialization


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad and each.dim() > 1]


def scaled(factor: float) -> Change:
    def change(setup: Setup) -> None:
        with torch.no_grad():
            for each in matrices(setup.model):
                each.mul_(factor)

    return change


def each_matrix(fill: Callable[[Tensor], object]) -> Change:
    def change(setup: Setup) -> None:
        for each in matrices(setup.model):
            fill(each)

    return change


def last_matrix(factor: float) -> Change:
    def change(setup: Setup) -> None:
        with torch.no_grad():
            matrices(setup.model)[-1].mul_(factor)

    return change


def biases(value: float) -> Change:
    def change(setup: Setup) -> None:
        with torch.no_grad():
            for name, each in setup.model.named_parameters():
                if name.endswith("bias") and each.requires_grad:
                    each.fill_(value)

    return change


for factor in (1.5, 0.5, 4, 10, 100, 0.1, 0.01, 1e-3):
    flaw(f"weights x{factor:g}", "initialization", scaled(factor))
flaw("weights N(0, 1)", "initialization", each_matrix(nn.init.normal_))
flaw("weights N(0, 0.02)", "initialization", each_matrix(lambda each: nn.init.normal_(each, std=0.02)))
flaw("weights zero", "initialization", each_matrix(nn.init.zeros_))
flaw("weights constant 0.1", "initialization", each_matrix(lambda each: nn.init.constant_(each, 0.1)))
flaw("weights orthogonal", "initialization", each_matrix(nn.init.orthogonal_))
flaw("last matrix zero", "initialization", last_matrix(0.0))
flaw("last matrix x100", "initialization", last_matrix(100.0))
flaw("biases 0.1", "initialization", biases(0.1))
flaw("biases -5", "initialization", biases(-5.0))
flaw("biases 20", "initialization", biases(20.0))


# Data


def inputs(transform: Callable[[Tensor], Tensor]) -> Change:
    """Change every floating-point input."""

    def change(setup: Setup) -> None:
        draw = setup.draw

        def drawn(generator: torch.Generator) -> Batch:
            batch = draw(generator)
            return Batch(
                tuple(transform(each) if each.is_floating_point() else each for each in batch.inputs),
                batch.targets,
            )

        setup.draw = drawn

    return change


def targets(transform: Callable[[Tensor], Tensor]) -> Change:
    def change(setup: Setup) -> None:
        draw = setup.draw

        def drawn(generator: torch.Generator) -> Batch:
            batch = draw(generator)
            return Batch(batch.inputs, None if batch.targets is None else transform(batch.targets))

        setup.draw = drawn

    return change


NUMBERS = frozenset({"numbers"})
CLASSES = frozenset({"classes"})
flaw("inputs x3", "inputs", inputs(lambda x: 3 * x))
flaw("inputs x100", "inputs", inputs(lambda x: 100 * x))
flaw("inputs x1e4", "inputs", inputs(lambda x: 1e4 * x))
flaw("inputs x0.01", "inputs", inputs(lambda x: 0.01 * x))
flaw("inputs plus 100", "inputs", inputs(lambda x: x + 100))
flaw("inputs zero", "inputs", inputs(torch.zeros_like), repairable=False)
flaw("targets x100", "targets", targets(lambda y: 100 * y), kinds=NUMBERS)
flaw("targets x1e4", "targets", targets(lambda y: 1e4 * y), kinds=NUMBERS)
flaw("targets plus 50", "targets", targets(lambda y: y + 50), kinds=NUMBERS)
flaw("targets x0.01", "targets", targets(lambda y: 0.01 * y), kinds=NUMBERS)


# Loss


def loss(transform: Callable[[Tensor], Tensor]) -> Change:
    def change(setup: Setup) -> None:
        own = setup.loss
        setup.loss = lambda *arguments: transform(own(*arguments))

    return change


def outputs(transform: Callable[[Tensor], Tensor]) -> Change:
    """Change the outputs before the loss; the score still reads the model's own."""

    def change(setup: Setup) -> None:
        own = setup.loss
        setup.loss = lambda output, *rest: own(transform(output), *rest)

    return change


flaw("loss negated", "loss", loss(lambda value: -value), repairable=False)
flaw("loss x1e4", "loss", loss(lambda value: 1e4 * value))
flaw("loss x1e-4", "loss", loss(lambda value: 1e-4 * value))
flaw("loss x0.1", "loss", loss(lambda value: 0.1 * value))
flaw("temperature 100", "loss", outputs(lambda x: x / 100), kinds=CLASSES)
flaw("temperature 0.01", "loss", outputs(lambda x: x * 100), kinds=CLASSES)
flaw("softmax before the loss", "loss", outputs(lambda x: x.softmax(-1)), kinds=CLASSES)
flaw("sigmoid before the loss", "loss", outputs(torch.sigmoid), kinds=CLASSES)
flaw("ReLU after the last layer", "loss", outputs(torch.relu), kinds=frozenset({"classes", "numbers"}))
flaw(
    "samples broadcast",
    "loss",
    outputs(lambda x: x.mean(0, keepdim=True).expand_as(x)),
    kinds=frozenset({"classes", "numbers"}),
    repairable=False,
)


# Structure


def dropout(rate: float) -> Change:
    """Put dropout behind every activation."""

    def change(setup: Setup) -> None:
        for module in list(setup.model.modules()):
            for name, child in list(module.named_children()):
                if type(child) in ACTIVATIONS:
                    setattr(module, name, nn.Sequential(child, nn.Dropout(rate)))

    return change


ACTIVATIONS = frozenset({nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Hardswish, nn.Sigmoid})


class Cut(nn.Module):
    """Cuts the graph behind a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        return self.inner(*args).detach()


def cut(setup: Setup) -> None:
    """Detach the result of the last activation."""
    places = [
        (module, name)
        for module in setup.model.modules()
        for name, child in module.named_children()
        if type(child) in ACTIVATIONS
    ]
    if places:
        module, name = places[-1]
        setattr(module, name, Cut(getattr(module, name)))


def half(dtype: torch.dtype) -> Change:
    """Train parameters and inputs in this dtype."""

    def change(setup: Setup) -> None:
        setup.model.to(dtype)
        inputs(lambda x: x.to(dtype))(setup)
        own = setup.loss
        setup.loss = lambda output, *rest: own(
            output.float() if isinstance(output, Tensor) else tuple(each.float() for each in output), *rest
        )
        if setup.evaluate is not None:
            judge = setup.evaluate
            setup.evaluate = lambda output, *rest: judge(
                output.float() if isinstance(output, Tensor) else tuple(each.float() for each in output),
                *rest,
            )

    return change


def slow_half(setup: Setup) -> None:
    """Half precision with steps that it may round away."""
    half(torch.bfloat16)(setup)
    rate(0.01)(setup)


flaw("dropout 0.1", "noise", dropout(0.1), needs=frozenset({"activation"}))
flaw("dropout 0.5", "noise", dropout(0.5), needs=frozenset({"activation"}))
flaw("dropout 0.9", "noise", dropout(0.9), needs=frozenset({"activation"}))
flaw("dropout 0.97", "noise", dropout(0.97), needs=frozenset({"activation"}))
flaw("graph cut", "graph", cut, needs=frozenset({"activation"}), repairable=False)
flaw("bfloat16", "precision", half(torch.bfloat16), needs=frozenset({"width"}))
flaw(
    "bfloat16, rate x0.01",
    "precision",
    lambda setup: (half(torch.bfloat16)(setup), rate(0.01)(setup))[0],
    needs=frozenset({"width"}),
)
structural("healthy", "healthy")
structural("width x2", "healthy", "width", width=2.0)
structural("width x0.5", "healthy", "width", width=0.5)
structural("GELU", "healthy", "activation", activation=nn.GELU)
structural("sigmoid units", "activation", "activation", activation=nn.Sigmoid)
structural("tanh units", "activation", "activation", activation=nn.Tanh)
structural("linear", "activation", "activation", activation=nn.Identity)
structural("exponential units", "activation", "activation", activation=lambda: Exponential())
structural("no norms", "structure", "norms", norms=False)
structural("no skips", "structure", "skips", skips=False)
structural("depth x4", "structure", "depth", depth=4)
structural("depth x8", "structure", "depth", depth=8)
structural("no skips, depth x4", "structure", "skips", "depth", skips=False, depth=4)
structural("no skips, depth x8", "structure", "skips", "depth", skips=False, depth=8)
structural("no norms, depth x4", "structure", "norms", "depth", norms=False, depth=4)
structural("no norms, depth x8", "structure", "norms", "depth", norms=False, depth=8)
structural("sigmoid units, depth x4", "structure", "activation", "depth", activation=nn.Sigmoid, depth=4)


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()
