"""The networks that costs are quoted for: a Transformer, a Hugging Face GPT-2, a deep MLP, a residual convnet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leadline import Case

VOCABULARY = 128
CLASSES = 10


class Tokens(nn.Module):
    """A language model around PyTorch's own encoder stack (pre-norm, no dropout)."""

    def __init__(self, *, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.position))


class PreActivation(nn.Module):
    """A residual block of two convolutions, each BN-ReLU-conv, with a projection if the shape changes."""

    def __init__(self, incoming: int, outgoing: int, *, stride: int = 1) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(incoming),
            nn.ReLU(),
            nn.Conv2d(incoming, outgoing, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
            nn.ReLU(),
            nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False),
        )
        same = incoming == outgoing and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(incoming, outgoing, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.branch(x)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def transformer(*, layers: int = 24, width: int = 256, length: int = 128, batch: int = 8) -> Case:
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (batch, length + 1))
    model = Tokens(layers=layers, width=width, length=length)
    return Case(model, tokens[:, :-1], tokens[:, 1:], token_loss)


def gpt2(*, layers: int = 24, width: int = 256, length: int = 128, batch: int = 8) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=length, n_embd=width, n_layer=layers, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokens = torch.randint(VOCABULARY, (batch, length))
    return Case(GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens})


def mlp(*, layers: int = 200, width: int = 128, batch: int = 64) -> Case:
    torch.manual_seed(0)
    stack = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    for layer in stack[::2]:
        nn.init.kaiming_normal_(layer.weight)
    model = nn.Sequential(*stack, nn.Linear(width, CLASSES))
    return Case(model, torch.randn(batch, width), torch.randint(CLASSES, (batch,)), F.cross_entropy)


def conv(*, blocks: int = 8, width: int = 16, batch: int = 32) -> Case:
    """Return three stages of `blocks` blocks of two convolutions, a stem and a head: 50 layers for 8 blocks."""
    torch.manual_seed(0)
    widths = [width, width, 2 * width, 4 * width]
    stages = [
        PreActivation(
            widths[stage] if first else widths[stage + 1], widths[stage + 1], stride=stride if first else 1
        )
        for stage, stride in enumerate((1, 2, 2))
        for first in [True] + [False] * (blocks - 1)
    ]
    top = [
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    ]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), *stages, *top)
    return Case(model, torch.randn(batch, 3, 32, 32), torch.randint(CLASSES, (batch,)), F.cross_entropy)


def narrow_transformer() -> Case:
    return transformer(layers=32, width=64, length=64, batch=8)


def wide_mlp() -> Case:
    """Return a network whose memory is mostly that of its parameters (8 MB), with a vanishing signal to fix."""
    case = mlp(layers=8, width=512, batch=16)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.mul_(0.3)
    return case


def with_adamw(case: Case) -> Case:
    """Return the case with an AdamW that has made a step, so that its state exists."""
    case = replace(case, optimizer=torch.optim.AdamW(case.model.parameters(), lr=1e-3))
    step(case)
    return case


def step(case: Case) -> None:
    """Do one plain training step."""
    for optimizer in case.optimizers:
        optimizer.zero_grad()
    output = case.model(**case.inputs) if isinstance(case.inputs, dict) else case.model(case.inputs)
    (output.loss if case.loss is None else case.loss(output, case.targets)).backward()
    for optimizer in case.optimizers:
        optimizer.step()


def available() -> dict[str, Callable[[], Case]]:
    """Return the workloads by the name that tables show; GPT-2 only if transformers is installed."""
    found: dict[str, Callable[[], Case]] = {"Transformer, 24 layers, d=256, 8 × 128 tokens": transformer}
    if find_spec("transformers") is not None:
        found["GPT-2 (Hugging Face), 24 layers, d=256, 8 × 128 tokens"] = gpt2
    found["MLP, 200 layers, width 128, batch 64"] = mlp
    found["residual conv net, 50 layers, 32 × 32, batch 32"] = conv
    return found
