"""The variants of the GPT: healthy ones that differ in taste, and ones with a single mistake."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from benchmarks.first_hour.gpt import GPT, GPTWithLoss, Network, second, token_loss
from benchmarks.first_hour.text import Batch, corpus
from leadline import Case

BASE_RATE = 3e-3
# Heuristic: a tenth of the run, as usual.
WARMUP_STEPS = 30

Half = Literal["calibration", "held out"]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], optim.Optimizer]


def _make(kind: type[optim.Optimizer], **options: Any) -> MakeOptimizer:
    def make(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        return kind(parameters, **options)

    return make


def adamw(lr: float = BASE_RATE, **options: Any) -> MakeOptimizer:
    return _make(optim.AdamW, lr=lr, **{"betas": (0.9, 0.95), "weight_decay": 0.1} | options)


def sgd(lr: float, momentum: float = 0.0, **options: Any) -> MakeOptimizer:
    return _make(optim.SGD, lr=lr, momentum=momentum, **options)


class ClippedSGD(optim.SGD):
    """SGD that clips the norm of all gradients before each step, as many training loops do."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, max_norm: float) -> None:
        super().__init__(params, lr=lr)
        self.max_norm = max_norm

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [each for group in self.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(parameters, self.max_norm)
        return super().step(closure)


def unchanged(model: GPT) -> None:
    """Leave the model as its constructor made it."""


def same_batch(batch: Batch) -> Batch:
    return batch


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One training program: a network, what its author did to it, its data and its optimizer."""

    name: str
    network: Network = field(default_factory=Network)
    edit: Callable[[GPT], None] = unchanged
    data: Callable[[Batch], Batch] = same_batch
    optimizer: MakeOptimizer = field(default_factory=adamw)
    learns: Callable[[GPT], list[nn.Parameter]] = trainable
    """The parameters that the optimizer gets."""
    schedule: Callable[[int], float] | None = None
    """Factor on the rate, by step."""

    @property
    def half(self) -> Half:
        digest = hashlib.sha256(self.name.encode()).digest()
        return "held out" if digest[0] & 1 else "calibration"

    def program(self, seed: int, *, inside: bool) -> Program:
        """Build the network from `seed`, with its optimizer and its batches."""
        torch.manual_seed(seed)
        model = (GPTWithLoss if inside else GPT)(self.network)
        with torch.no_grad():
            self.edit(model)
        optimizer = self.optimizer(self.learns(model))
        schedule = LambdaLR(optimizer, self.schedule) if self.schedule else None
        return Program(variant=self, model=model, optimizer=optimizer, schedule=schedule, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A variant that has been built."""

    variant: Variant
    model: GPT
    optimizer: optim.Optimizer
    schedule: LRScheduler | None
    seed: int

    def batches(self) -> Iterator[Batch]:
        return map(self.variant.data, corpus().batches(self.seed))

    def loss(self, batch: Batch) -> Tensor:
        idx, targets = batch
        if isinstance(self.model, GPTWithLoss):
            return self.model(idx, targets)[1]
        return token_loss(self.model(idx), targets)

    def case(self, batches: int = 1) -> Case:
        """Return the first batches as a user passes them to `leadline.check`."""
        (idx, targets), *others = islice(self.batches(), batches)
        if isinstance(self.model, GPTWithLoss):
            return Case(
                self.model, (idx, targets), loss=second, optimizer=self.optimizer, batches=others or None
            )
        return Case(self.model, idx, targets, token_loss, self.optimizer, batches=others or None)


def _network(name: str, **changes: Any) -> Variant:
    return Variant(name=name, network=Network(**changes))


def _optimizer(name: str, optimizer: MakeOptimizer) -> Variant:
    return Variant(name=name, optimizer=optimizer)


def _weights(name: str, change: Callable[[nn.Parameter], Any], *parts: str) -> Variant:
    """Return a variant in which `change` is applied to all parameters whose name contains one of `parts`."""

    def edit(model: GPT) -> None:
        for path, parameter in model.named_parameters():
            if any(part in path for part in parts):
                change(parameter)

    return Variant(name=name, edit=edit)


def _times(factor: float) -> Callable[[nn.Parameter], Any]:
    return lambda parameter: parameter.mul_(factor)


def _fill(value: float) -> Callable[[nn.Parameter], Any]:
    return lambda parameter: parameter.fill_(value)


def _only(name: str, *parts: str) -> Variant:
    """Return a variant in which only parameters whose name contains one of `parts` are trainable."""

    def freeze(model: GPT) -> None:
        for path, parameter in model.named_parameters():
            parameter.requires_grad_(any(part in path for part in parts))

    return Variant(name=name, edit=freeze)


def _given(name: str, *parts: str) -> Variant:
    """Return a variant whose optimizer got only parameters whose name contains one of `parts`."""

    def learns(model: GPT) -> list[nn.Parameter]:
        return [
            parameter for path, parameter in model.named_parameters() if any(part in path for part in parts)
        ]

    return Variant(name=name, learns=learns)


def _in_dtype(name: str, dtype: torch.dtype, optimizer: MakeOptimizer) -> Variant:
    def cast(model: GPT) -> None:
        model.to(dtype)

    return Variant(name=name, edit=cast, optimizer=optimizer)


def _warmup(step: int) -> float:
    return min(1.0, (step + 1) / WARMUP_STEPS)


def _warmup_cosine(step: int) -> float:
    return _warmup(step) * (0.55 + 0.45 * math.cos(math.pi * min(step / 300, 1.0)))


def _scaled_projections(model: GPT) -> None:
    """Scale the last weights of each branch by 1/sqrt(2 layers), as GPT-2 does."""
    for path, parameter in model.named_parameters():
        if path.endswith(("out.weight", "down.weight")):
            parameter.mul_((2 * model.network.layers) ** -0.5)


def _zeros(batch: Batch) -> Batch:
    return torch.zeros_like(batch[0]), batch[1]


def _one_label(batch: Batch) -> Batch:
    return batch[0], torch.full_like(batch[1], 7)


def _ignored_labels(batch: Batch) -> Batch:
    return batch[0], torch.full_like(batch[1], -100)


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)


def _probability_logs(logits: Tensor) -> Tensor:
    """The log of probabilities that are zero where the logit is negative: born non-finite."""
    return (logits.relu() / logits.relu().sum(-1, keepdim=True)).log()


def _overflowing(logits: Tensor) -> Tensor:
    return (1000 * logits).exp()


def _scaled_logits(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda logits: factor * logits


def _steep_tanh(x: Tensor) -> Tensor:
    return torch.tanh(20 * x)


def _dead_relu(x: Tensor) -> Tensor:
    return F.relu(x - 20)


HEALTHY = (
    Variant(name="base"),
    _network("two wide layers", width=64, layers=2),
    _network("twelve layers", layers=12),
    _network("one head", heads=1),
    _network("eight heads", heads=8),
    _network("relu", activation=F.relu),
    _network("silu", activation=F.silu),
    _network("tanh", activation=torch.tanh),
    _network("post-norm", norm="post"),
    _network("RMSNorm, no biases", norm_layer=nn.RMSNorm, bias=False),
    _network("tied embedding", tied=True),
    _network("dropout 0.1", dropout=0.1),
    _network("torch's own initialization", std=None),
    _network("std 0.02 as in GPT-2", std=0.02),
    _network("log-softmax before cross-entropy, which changes nothing", on_logits=_log_softmax),
    _optimizer("Adam at 1e-3", _make(optim.Adam, lr=1e-3)),
    _optimizer("AdamW at 1e-2", adamw(1e-2)),
    _optimizer("SGD with momentum at 0.1", sgd(0.1, 0.9)),
    _optimizer("RMSprop at 1e-3", _make(optim.RMSprop, lr=1e-3)),
    _optimizer("NAdam at 2e-3", _make(optim.NAdam, lr=2e-3)),
    _optimizer("SGD with its gradient clipped to 1", lambda p: ClippedSGD(p, lr=0.5, max_norm=1.0)),
    Variant(name="linear warmup", schedule=_warmup),
    Variant(name="warmup and cosine", schedule=_warmup_cosine),
    Variant(name="twelve layers, projections scaled", network=Network(layers=12), edit=_scaled_projections),
    _weights("head starts at zero", _fill(0.0), "head"),
)

RATES = (
    _optimizer("AdamW, lr x100", adamw(100 * BASE_RATE)),
    _optimizer("AdamW, lr x1000", adamw(1000 * BASE_RATE)),
    _optimizer("AdamW, lr /1000", adamw(BASE_RATE / 1000)),
    _optimizer("AdamW, lr /10000", adamw(BASE_RATE / 10000)),
    _optimizer("AdamW, lr 0", adamw(0.0)),
    _optimizer("Adam without decay, lr x100", _make(optim.Adam, lr=100 * BASE_RATE)),
    _optimizer("SGD that crawls, 1e-3", sgd(1e-3)),
    _optimizer("SGD that crawls with momentum, 1e-5", sgd(1e-5, 0.9)),
    _optimizer("SGD at 100", sgd(100.0)),
    _optimizer("SGD with momentum at 10", sgd(10.0, 0.9)),
    _optimizer("SGD, momentum 0.999", sgd(0.1, 0.999)),
    _optimizer("RMSprop at 1", _make(optim.RMSprop, lr=1.0)),
    _optimizer("Adagrad at 1e-5", _make(optim.Adagrad, lr=1e-5)),
    _optimizer("SGD with its gradient clipped to 1e-4", lambda p: ClippedSGD(p, lr=0.5, max_norm=1e-4)),
    Variant(name="twelve layers, lr x100", network=Network(layers=12), optimizer=adamw(100 * BASE_RATE)),
    Variant(name="warmup to lr x100", schedule=_warmup, optimizer=adamw(100 * BASE_RATE)),
)

OPTIMIZERS = (
    _optimizer("AdamW, eps 1", adamw(eps=1.0)),
    _optimizer("AdamW, beta1 0.9999", adamw(betas=(0.9999, 0.95))),
    _optimizer("AdamW, beta2 0.001", adamw(betas=(0.9, 0.001))),
    _optimizer("AdamW, weight decay 10", adamw(weight_decay=10.0)),
    _optimizer("AdamW, weight decay 100", adamw(weight_decay=100.0)),
    _optimizer("Adam, L2 penalty 1", _make(optim.Adam, lr=BASE_RATE, weight_decay=1.0)),
    _optimizer("SGD, weight decay 1", sgd(0.1, 0.9, weight_decay=1.0)),
    _optimizer("AdamW that maximizes the loss", adamw(maximize=True)),
    _optimizer("SGD that maximizes the loss", sgd(0.1, maximize=True)),
)

ARCHITECTURE = (
    _network("four layers without residuals", residual=False),
    _network("twelve layers without residuals", residual=False, layers=12),
    _network("four layers without residuals and norms", residual=False, norm="none"),
    _network("64 post-norm layers", norm="post", layers=64),
    _network("24 post-norm layers", norm="post", layers=24),
    _network("no norms, final or other", norm="none", final_norm=False),
    _network("missing final norm", final_norm=False),
    _network("norm eps 1", norm_eps=1.0),
    _network("norm eps 1e6", norm_eps=1e6),
    _network("attention logits x1000", attention_gain=1000.0),
    _network("attention without its scale", attention_gain=8**0.5),
    _network("twelve sigmoid layers without residuals", residual=False, layers=12, activation=torch.sigmoid),
    _network("saturated tanh without residuals", residual=False, activation=_steep_tanh),
    _network("dead relu without residuals", residual=False, activation=_dead_relu),
    _network("branches x30 without norms, twelve layers", norm="none", branch_gain=30.0, layers=12),
    _network("branches x1e-4 without residuals", residual=False, branch_gain=1e-4, norm="none"),
    _network("embedding x100", embedding_gain=100.0),
    _network("embedding x100 without norms", embedding_gain=100.0, norm="none", final_norm=False),
    _network("positions x1000", position_gain=1000.0),
    _network("dropout 0.9", dropout=0.9),
    _network("dropout 0.99", dropout=0.99),
    _network("softmax before cross-entropy", on_logits=_softmax),
    _network("sigmoid before cross-entropy", on_logits=torch.sigmoid),
    _network("tanh before cross-entropy", on_logits=torch.tanh),
    _network("relu before cross-entropy, logits below zero", on_logits=lambda x: F.relu(x - 10)),
    _network("logits x1000", on_logits=_scaled_logits(1000.0)),
    _network("logits x1e-4", on_logits=_scaled_logits(1e-4)),
    _network("all but the head detached", detach_after=3),
    _network("twelve layers, detached after the sixth", layers=12, detach_after=5),
)

WEIGHTS = (
    _network("std 2 everywhere", std=2.0),
    _network("std 1e-6 everywhere", std=1e-6),
    _network("std 1e-6 everywhere, no residuals", std=1e-6, residual=False),
    _network("std 2 everywhere, no norms", std=2.0, norm="none", final_norm=False),
    _weights("zeros everywhere", _fill(0.0), "tokens", "positions", "qkv", "out", "up", "down", "head"),
    _weights("constants everywhere", _fill(0.02), "tokens", "positions", "qkv", "out", "up", "down", "head"),
    _weights("norm gains are zero", _fill(0.0), "norm"),
    _weights("final norm gain is zero and head is zero", _fill(0.0), "final_norm", "head"),
    _weights("query and key weights x1000", _times(1000.0), "qkv"),
    _weights("head weights x1000", _times(1000.0), "head"),
    _weights("output projections x1000", _times(1000.0), "out.weight", "down.weight"),
    _weights("position embedding x1000", _times(1000.0), "positions"),
    _weights("token embedding x1e-6", _times(1e-6), "tokens"),
    _weights("one weight is NaN", lambda p: p.view(-1)[0].fill_(math.nan), "blocks.1.feedforward.up.weight"),
    _weights("norm gains x100", _times(100.0), "norm"),
)

PARTS = (
    _only("all frozen but the norms", "norm"),
    _only("all frozen but the biases", "bias"),
    _only("all frozen but the head", "head"),
    _only("all frozen but the embeddings", "tokens", "positions"),
    _given("optimizer with the norms only", "norm"),
    _given("optimizer with the first block only", "blocks.0."),
    _given("optimizer with the positions only", "positions"),
)

DATA = (
    Variant(name="all-zero inputs", data=_zeros),
    Variant(name="all labels alike", data=_one_label),
    Variant(name="all labels ignored", data=_ignored_labels),
)

NUMERICS = (
    _in_dtype("float16 parameters, AdamW", torch.float16, adamw()),
    _in_dtype("float16 parameters, SGD at 1e-3", torch.float16, sgd(1e-3)),
    _in_dtype("bfloat16 parameters, AdamW at 1e-5", torch.bfloat16, adamw(1e-5)),
    _network("log of zero probabilities", on_logits=_probability_logs),
    _network("exponential that overflows", on_logits=_overflowing),
)

GROUPS = {
    "healthy": HEALTHY,
    "rate": RATES,
    "optimizer": OPTIMIZERS,
    "architecture": ARCHITECTURE,
    "weights": WEIGHTS,
    "parts that learn": PARTS,
    "data": DATA,
    "numerics": NUMERICS,
}
VARIANTS = {variant.name: variant for group in GROUPS.values() for variant in group}
