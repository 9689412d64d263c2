"""Language: a letter model of sixteen gated convolution blocks without recurrence, whose skips were forgotten.

The text is the language reference that comes with Python, letter by letter; its last tenth is held out.
Without skips and with torch's default initialization neither the signal nor the gradient passes the stack.

    python -m examples.applications.letters [--quick]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.applications.application import Application, main
from examples.data import Batch, letter_loss, letters, text_batches

WIDTH, LENGTH, ROWS = 32, 32, 16
HELD_OUT = 0.1


class Block(nn.Module):
    """A causal convolution over three letters, then GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.mix(F.pad(x, (2, 0))))


class LetterModel(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        vocabulary = letters()[1]
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        return self.head(self.blocks(x).transpose(1, 2))


def batches(count: int, *, held_out: bool = False) -> list[Batch]:
    ids, _ = letters()
    cut = round(len(ids) * (1 - HELD_OUT))
    return text_batches(ids[cut:] if held_out else ids[:cut], count, ROWS, LENGTH)


def build(blocks: int = 16) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(blocks)
    data = batches(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return leadline.Case(model, *data[0], letter_loss, optimizer, data)


def score(model: nn.Module) -> float:
    """Return minus the loss on the held-out text, in nats per letter."""
    losses = [letter_loss(model(tokens), following) for tokens, following in batches(10, held_out=True)]
    return -float(torch.stack(losses).mean())


APPLICATION = Application(
    build=build, score=score, unit="negative nats per letter on held-out text", fix="add-skips"
)

if __name__ == "__main__":
    main(APPLICATION)
