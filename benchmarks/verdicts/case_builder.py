"""Builds the Case of a Problem, which Leadline checks and which is trained for the label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.verdicts.data import WINDOW, Task, batches, task
from benchmarks.verdicts.flaws import apply_flaw, hidden_layers, initialize_, recurrent_matrices
from benchmarks.verdicts.models import (
    HEADS,
    SIDE,
    RowEncoder,
    TorchLanguageModel,
    coherent_layer,
    conv_layer,
    dense_layer,
    leadline_encoder,
    plain_conv,
    plain_mlp,
    scheme_of,
    torch_encoder,
)
from benchmarks.verdicts.problem import Problem
from benchmarks.verdicts.recurrent import PIXELS, CharacterModel, SequenceClassifier, make_cells
from leadline import Case
from leadline.nn import MLP, LanguageModel, Options, ResNet

MOMENTUM = 0.9
EXTRA_BATCHES = 8  # batches of a Case after the first
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats, computed in float32 for any model dtype."""
    return F.cross_entropy(output.float().flatten(0, -2), targets.flatten())


def build(problem: Problem) -> Case:
    """Return the problem's model at its initial weights, with its first batches and its optimizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(problem.seed)
        model = build_model(problem)
    stream = problem_batches(problem)
    inputs, targets = next(stream)
    return Case(
        model=model,
        inputs=inputs,
        targets=targets,
        loss=loss,
        optimizer=build_optimizer(problem, model),
        batches=list(islice(stream, EXTRA_BATCHES)),
    )


def problem_batches(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the problem's batches in its dtype and scale, without end."""
    for inputs, targets in batches(task(problem.data), problem.batch, problem.seed):
        if inputs.is_floating_point():
            yield inputs.to(DTYPES[problem.dtype]) * problem.input_scale, targets
        else:
            yield inputs, targets


def build_model(problem: Problem) -> nn.Module:
    """Return the network, initialized, with its flaw and in its dtype."""
    model = BUILDERS[problem.family](problem, task(problem.data))
    if problem.family == "rnn":
        initialize_(recurrent_matrices(model), problem.init, problem.gain, problem.activation)
    elif problem.scheme in ("plain", "coherent", "unscaled"):
        initialize_(hidden_layers(model), problem.init, problem.gain, problem.activation)
    model = apply_flaw(model, problem.flaw, problem.flaw_size)
    return model.to(DTYPES[problem.dtype])


def build_optimizer(problem: Problem, model: nn.Module) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer with default settings except rate, decay and momentum."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    rate, decay = problem.rate, problem.weight_decay
    if problem.optimizer == "adam":
        return torch.optim.Adam(trainable, rate, weight_decay=decay)
    if problem.optimizer == "adamw":
        return torch.optim.AdamW(trainable, rate, weight_decay=decay)
    momentum = MOMENTUM if problem.optimizer == "momentum" else 0.0
    return torch.optim.SGD(trainable, rate, momentum=momentum, weight_decay=decay)


def _generator() -> torch.Generator:
    """Return a generator seeded from the global random state."""
    return torch.Generator().manual_seed(int(torch.randint(2**31, ())))


def _mlp(problem: Problem, data: Task) -> nn.Module:
    inputs, sizes = data.inputs.shape[1], (problem.width, problem.depth, data.classes)
    if problem.scheme == "plain":
        return plain_mlp(inputs, *sizes, dense_layer(problem.activation, problem.norm))
    if problem.scheme == "coherent":
        return plain_mlp(inputs, *sizes, coherent_layer)
    width, depth, outputs = sizes
    scheme = scheme_of(problem.scheme)
    return MLP(
        inputs, width, depth, outputs, scheme=scheme, activation=problem.activation, generator=_generator()
    )


def _conv(problem: Problem, data: Task) -> nn.Module:
    return plain_conv(
        problem.width, problem.depth, data.classes, conv_layer(problem.activation, problem.norm)
    )


def _resnet(problem: Problem, data: Task) -> nn.Module:
    name, _, version = problem.scheme.partition("/")
    model = ResNet(
        1,
        problem.width,
        problem.depth,
        data.classes,
        scheme=scheme_of(name),
        version="v1" if version == "v1" else "pre",
        generator=_generator(),
    )
    return nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)), model)


def _encoder(problem: Problem, data: Task) -> nn.Module:
    width, depth = problem.width, problem.depth
    if problem.scheme.startswith("torch-"):
        body = torch_encoder(width, depth, pre=problem.scheme == "torch-pre")
    else:
        body = leadline_encoder(width, depth, problem.scheme, _generator())
    return RowEncoder(width, body, data.classes)


def _lm(problem: Problem, data: Task) -> nn.Module:
    width, depth = problem.width, problem.depth
    if problem.scheme.startswith("torch-"):
        body = torch_encoder(width, depth, pre=problem.scheme == "torch-pre")
        return TorchLanguageModel(data.classes, width, WINDOW, body)
    return LanguageModel(
        data.classes,
        width,
        HEADS,
        depth,
        scheme=scheme_of(problem.scheme),
        max_len=WINDOW,
        options=Options(positions="learned"),
        generator=_generator(),
    )


def _rnn(problem: Problem, data: Task) -> nn.Module:
    scheme, _, length = problem.scheme.partition("/")
    inputs = problem.width if problem.data == "text" else PIXELS // int(length)
    cells = make_cells(scheme, problem.activation, (inputs, problem.width, problem.depth))
    if problem.data == "text":
        return CharacterModel(cells, data.classes, problem.width)
    return SequenceClassifier(cells, problem.width, data.classes, length=int(length))


BUILDERS: dict[str, Callable[[Problem, Task], nn.Module]] = {
    "mlp": _mlp,
    "conv": _conv,
    "resnet": _resnet,
    "encoder": _encoder,
    "lm": _lm,
    "rnn": _rnn,
}
