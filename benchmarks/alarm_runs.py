"""Real training runs, healthy or with one flaw that starts at a known step, recorded as a watch would record them."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.alarm_models import Network, build
from benchmarks.verdicts.data import Task, batches, task
from leadline.checks._history import ABSENT, FROZEN, RunLayout
from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.records import ParamGroup
from leadline.records.run import Sample

STEPS = 1200
# Steps between two samples of the blocks.
PROBE = 20
ONSET = 600
FAMILIES = ("mlp", "residual", "conv", "transformer", "post-norm")
TEXTUAL = ("transformer", "post-norm")
SCHEDULES = ("constant", "cosine", "steps")
BLOCK_METRICS = ("dead", "branch_skip", "attention_logit", "attention_entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of one run; `flaw` is "" for a healthy run."""

    family: str
    seed: int
    depth: int
    width: int
    optimizer: str
    lr: float
    decay: float
    batch: int
    schedule: str
    clip: float | None
    flaw: str = ""
    onset: int = ONSET
    steps: int = STEPS

    @property
    def key(self) -> str:
        return f"{self.flaw or 'healthy'} | {self.family} | {self.seed}"


def healthy_plan(seed: int, family: str | None = None) -> Plan:
    """Return a common recipe, drawn with the seed."""
    draw = random.Random(seed)
    family = family or draw.choice(FAMILIES)
    optimizer = "AdamW" if family in TEXTUAL else draw.choice(["AdamW", "SGD", "Adam"])
    lr = {"AdamW": 1e-3, "Adam": 1e-3, "SGD": 0.03}[optimizer] * draw.choice([0.3, 0.6, 1.0])
    if family == "post-norm":
        lr *= 0.5
    return Plan(
        family=family,
        seed=seed,
        depth=draw.choice([2, 3, 4]),
        width=draw.choice([16, 24, 32]),
        optimizer=optimizer,
        lr=lr,
        decay=draw.choice([0.0, 1e-4, 1e-2]) if optimizer != "AdamW" else draw.choice([0.0, 0.01, 0.1]),
        batch=draw.choice([4, 8, 16] if family in TEXTUAL else [8, 16, 32, 64]),
        schedule=draw.choice(SCHEDULES),
        clip=draw.choice([None, None, 1.0]),
    )


def settling_plan(seed: int) -> Plan:
    """Return a convolutional network whose scale-invariant weights reach equilibrium: high rate, strong decay."""
    draw = random.Random(seed)
    plan = healthy_plan(seed, "conv")
    decay = draw.choice([0.01, 0.02])
    return replace(plan, optimizer="SGD", lr=0.03, decay=decay, schedule="constant", clip=None, batch=16)


def rate(plan: Plan, step: int) -> float:
    """Return the scheduled rate: 50 steps of warm-up unless it is constant."""
    if plan.flaw == "divergence" and step >= plan.onset:
        return plan.lr * math.exp(min((step - plan.onset) / 40, 12.0))
    if plan.flaw == "high rate":
        return 100 * plan.lr
    if plan.schedule == "constant":
        return plan.lr
    warm = min((step + 1) / 50, 1.0)
    if plan.schedule == "steps":
        return plan.lr * warm * 0.1 ** (step // 700)
    return plan.lr * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / plan.steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A finished run: the names of its parameters, and one sample per step."""

    plan: Plan
    names: list[str]
    samples: list[Sample]

    @property
    def layout(self) -> RunLayout:
        return layout_of(self.plan, self.names)


def record(plan: Plan) -> Recorded:
    """Train and record the run on one thread."""
    torch.manual_seed(plan.seed)
    found = task("text" if plan.family in TEXTUAL else "digits")
    length = found.inputs.shape[1]
    model = build(plan.family, depth=plan.depth, width=plan.width, classes=found.classes, length=length)
    FLAWED_MODELS.get(plan.flaw, lambda model: None)(model)
    names = [name for name, _ in model.named_parameters()]
    trained = trained_parameters(plan, model)
    optimizer = make_optimizer(plan, trained)
    samples = list(train(plan, model, optimizer, found))
    return Recorded(plan=plan, names=names, samples=samples)


def trained_parameters(plan: Plan, model: Network) -> list[nn.Parameter]:
    """Return the parameters for the optimizer: all of them, or all except one block."""
    left_out = "blocks.1." if plan.flaw == "left out" else "\0"
    return [each for name, each in model.named_parameters() if not name.startswith(left_out)]


def make_optimizer(plan: Plan, trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    if plan.optimizer == "SGD":
        return torch.optim.SGD(trained, plan.lr, momentum=0.9, weight_decay=plan.decay)
    kind = torch.optim.AdamW if plan.optimizer == "AdamW" else torch.optim.Adam
    return kind(trained, plan.lr, weight_decay=plan.decay)


def layout_of(plan: Plan, names: list[str]) -> RunLayout:
    homes = tuple(int(name.split(".")[1]) if name.startswith("blocks.") else None for name in names)
    options = {"momentum": 0.9, "betas": (0.9, 0.999)}
    group = ParamGroup(parameters=(), lr=1.0, weight_decay=plan.decay, options=options)
    settled = equilibrium(plan.optimizer, group, count=1, radius=1.0) if plan.optimizer != "Adam" else None
    turning = [name.endswith("conv.weight") for name in names]
    return RunLayout(
        parameters=tuple(names),
        blocks=tuple(f"blocks.{index}" for index in range(plan.depth)),
        parameter_blocks=homes,
        invariant=tuple(turning),
        rotation=tuple(settled.angle if settled and turns else None for turns in turning),
        settling=(settled.steps if settled else 0.0,) * len(names),
    )


def train(plan: Plan, model: Network, optimizer: torch.optim.Optimizer, found: Task) -> Iterator[Sample]:
    """Yield one sample per step. Stop ten steps after the loss became non-finite."""
    parameters = list(model.parameters())
    stream, same = batches(found, plan.batch, plan.seed), None
    scaler = Scaler() if plan.flaw == "loss scale" or (not plan.flaw and plan.seed % 5 == 0) else None
    broken = 0
    for step in range(plan.steps):
        x, y = next(stream)
        same = same or (x, y)
        x, y = flawed_batch(plan, step, (x, y), same, found)
        for group in optimizer.param_groups:
            group["lr"] = rate(plan, step)
        rows = model.read(x) if step % PROBE == 0 else []
        scalars, vectors = one_step(plan, step, model, optimizer, parameters, (x, y), scaler)
        yield Sample(step=step, scalars=scalars, vectors=vectors | block_vectors(rows))
        broken += not math.isfinite(scalars["loss"])
        if broken > 10:
            return


def one_step(plan, step, model, optimizer, parameters, batch, scaler):  # noqa: PLR0913
    """Do one step: forward, backward, clipping, optimizer. Return the numbers that a watch records."""
    if plan.flaw != "kept gradients":
        for each in parameters:
            each.grad = None
    loss = loss_of(model, batch)
    loss.backward()
    FLAWED_GRADIENTS.get(plan.flaw, lambda plan, step, model: None)(plan, step, model)
    gradients = [each.grad for each in parameters]
    grad_norms = norms([each for each in gradients if each is not None])
    total = math.sqrt(sum(each * each for each in grad_norms))
    clip = 1e-3 if plan.flaw == "tight clip" else plan.clip
    removed = max(0.0, 1 - clip / total) if clip and total > 0 else 0.0
    if clip:
        nn.utils.clip_grad_norm_(parameters, clip)
    before = [each.detach().clone() for each in parameters]
    skipped = scaler is not None and scaler.skips(total)
    if not skipped:
        optimizer.step()
    moved = norms([a.detach() - b for a, b in zip(parameters, before, strict=True)])
    sizes = norms(before)
    scalars = {
        "loss": loss.item(),
        "lr": optimizer.param_groups[0]["lr"],
        "grad_norm": total,
        "update_norm": math.sqrt(sum(each * each for each in moved)),
        "weight_norm": math.sqrt(sum(each * each for each in sizes)),
        "non_finite": float(
            sum(not math.isfinite(each) for each in grad_norms) + (not math.isfinite(loss.item()))
        ),
    }
    if clip:
        scalars["grad_clip"] = removed
    if scaler is not None:
        scalars["loss_scale"] = scaler.scale
    vectors = {"update_norm": array("f", moved), "weight_norm": array("f", sizes)}
    vectors["grad_norm"] = array("f", with_absent(parameters, gradients, grad_norms))
    return scalars, vectors


class Scaler:
    """The rule of GradScaler: start at 65536, halve on overflow, double after 2000 good steps."""

    def __init__(self) -> None:
        self.scale, self.good = 65536.0, 0

    def skips(self, total: float) -> bool:
        overflow = not math.isfinite(total)
        self.good = 0 if overflow else self.good + 1
        self.scale *= 0.5 if overflow else 2.0 if self.good % 2000 == 0 else 1.0
        return overflow


def loss_of(model: Network, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return F.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def norms(tensors: list[Tensor]) -> list[float]:
    return torch.stack(torch._foreach_norm(tensors)).tolist() if tensors else []


def with_absent(
    parameters: list[nn.Parameter], gradients: list[Tensor | None], found: list[float]
) -> list[float]:
    left = iter(found)
    return [
        FROZEN if not each.requires_grad else ABSENT if gradient is None else next(left)
        for each, gradient in zip(parameters, gradients, strict=True)
    ]


def block_vectors(rows: list[dict[str, float]]) -> dict[str, array]:
    names = [name for name in BLOCK_METRICS if rows and name in rows[0]]
    return {name: array("f", [row[name] for row in rows]) for name in names}


def flawed_batch(plan: Plan, step: int, batch, same, found: Task):
    """Return the batch with the flaw applied."""
    x, y = batch
    late = step >= plan.onset
    if plan.flaw == "same batch" and late:
        return same
    if plan.flaw == "noise labels":
        generator = torch.Generator().manual_seed(step)
        return x, torch.randint(0, found.classes, y.shape, generator=generator)
    if plan.flaw == "bad batch" and step == plan.onset:
        return (
            (x * 30.0, y.roll(1, 0)) if x.is_floating_point() else (x.flip(-1) * 0, y * 0 + found.classes - 1)
        )
    if plan.flaw == "non-finite" and step == plan.onset and x.is_floating_point():
        return x * math.inf, y
    return x, y


def _detach_block(model: Network) -> None:
    block = model.blocks[1]
    forward = block.forward
    block.forward = lambda x: x + (forward(x) - x).detach()


FLAWED_MODELS: dict[str, Callable[[Network], None]] = {"cut": _detach_block}


def _sink_bias(plan: Plan, step: int, model: Network) -> None:
    """From the onset on, push the first biases down, so that units die one after the other."""
    if step >= plan.onset:
        with torch.no_grad():
            for block in model.blocks[:2]:
                (block.linear if hasattr(block, "linear") else block.one).bias.sub_(0.02)


def _kick(plan: Plan, step: int, model: Network) -> None:
    """Make one gradient a hundred times larger than it should be."""
    if step == plan.onset:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.mul_(100.0)


def _grow(names: tuple[str, ...]) -> Callable[[Plan, int, Network], None]:
    """From the onset on, let these weights grow by half a percent per step, as with too high a rate."""

    def push(plan: Plan, step: int, model: Network) -> None:
        if step >= plan.onset:
            with torch.no_grad():
                for name, each in model.named_parameters():
                    if name.endswith(names):
                        each.mul_(1.005)

    return push


def _overflow(plan: Plan, step: int, model: Network) -> None:
    if step >= plan.onset and step % 3 == 0:
        next(model.parameters()).grad.fill_(math.inf)


def _poison(plan: Plan, step: int, model: Network) -> None:
    if step == plan.onset:
        model.blocks[1].get_parameter(next(n for n, _ in model.blocks[1].named_parameters())).grad[0] = (
            math.nan
        )


FLAWED_GRADIENTS: dict[str, Callable[[Plan, int, Network], None]] = {
    "spike": _kick,
    "dying units": _sink_bias,
    "growing branch": _grow(("two.weight", "out.weight")),
    "growing logits": _grow(("qkv.weight",)),
    "shrinking rate": _grow(("conv.weight",)),
    "loss scale": _overflow,
    "non-finite": _poison,
}

FLAWS: dict[str, tuple[str, ...]] = {  # the flaws, and the families in which each can occur
    "spike": FAMILIES,
    "bad batch": ("mlp",),
    "divergence": FAMILIES,
    "noise labels": FAMILIES,
    "dying units": ("mlp", "residual"),
    "growing branch": ("residual",),
    "growing logits": TEXTUAL,
    "shrinking rate": ("conv",),
    "loss scale": FAMILIES,
    "same batch": FAMILIES,
    "left out": FAMILIES,
    "cut": ("residual", "transformer"),
    "tight clip": FAMILIES,
    "non-finite": FAMILIES,
    "high rate": TEXTUAL,
    "kept gradients": FAMILIES,
}


def sick_plan(flaw: str, seed: int) -> Plan:
    """Return a common recipe with one flaw; clipping is off if it would hide the flaw."""
    family = FLAWS[flaw][seed % len(FLAWS[flaw])]
    plan = replace(healthy_plan(seed, family), flaw=flaw, onset=random.Random(seed).randrange(300, 700))
    at_start = flaw in ("noise labels", "left out", "cut", "tight clip", "high rate", "kept gradients")
    plan = replace(plan, onset=0) if at_start else plan
    return (
        replace(plan, clip=None, steps=plan.onset + 700) if flaw != "tight clip" else replace(plan, steps=700)
    )
