"""A character model around PyTorch's own `nn.TransformerEncoder`, with the norms inside or outside the skip.

    python examples/transformer.py
    leadline check examples/transformer.py:pre_norm
    leadline check examples/transformer.py:post_norm

The text is the source of Python's `argparse`: it is on every machine. `main` prints where the tracer found the norms;
it reads that off the graph of operations, not off the flag.
"""

from __future__ import annotations

import argparse
import inspect
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline

LENGTH = 64
BATCH = 8


class CharacterModel(nn.Module):
    def __init__(self, *, vocabulary: int, layers: int, width: int, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embed(tokens) + self.position
        return self.head(self.encoder(x, mask=causal, is_causal=True))


def pre_norm(layers: int = 12, width: int = 64) -> leadline.Case:
    return case(layers=layers, width=width, norm_first=True)


def post_norm(layers: int = 12, width: int = 64) -> leadline.Case:
    return case(layers=layers, width=width, norm_first=False)


def case(*, layers: int, width: int, norm_first: bool) -> leadline.Case:
    torch.manual_seed(0)
    tokens, vocabulary = text()
    model = CharacterModel(vocabulary=vocabulary, layers=layers, width=width, norm_first=norm_first)
    return leadline.Case(model, tokens[:, :-1], tokens[:, 1:], next_character_loss)


def text() -> tuple[Tensor, int]:
    """Return character sequences, one character longer than the model reads, and the size of the alphabet."""
    source = inspect.getsource(argparse)
    alphabet = {character: index for index, character in enumerate(sorted(set(source)))}
    codes = torch.tensor([alphabet[character] for character in source[: BATCH * (LENGTH + 1)]])
    return codes.view(BATCH, LENGTH + 1), len(alphabet)


def next_character_loss(logits: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def main() -> None:
    for build in (pre_norm, post_norm):
        example = build()
        report = leadline.check(example.model, example.inputs, example.targets, example.loss)
        placements = Counter(
            block.residual.placement for block in report.profile.blocks if block.residual is not None
        )
        print(f"{build.__name__}: {report.verdict}; norm placement of residual blocks {dict(placements)}")


if __name__ == "__main__":
    main()
