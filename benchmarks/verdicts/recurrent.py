"""Recurrent networks of the benchmark: PyTorch's fused ones, and one that calls torch step by step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.verdicts.models import SIDE

PIXELS = SIDE * SIDE
FUSED_CELLS: dict[str, type[nn.Module]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class UnrolledRNN(nn.Module):
    """Stacked layers of h = phi(Wx + Uh + b), with separate torch calls for each step."""

    def __init__(self, inputs: int, width: int, depth: int, activation: str) -> None:
        super().__init__()
        kind = "tanh" if activation == "tanh" else "relu"
        self.cells = nn.ModuleList(
            nn.RNNCell(inputs if i == 0 else width, width, nonlinearity=kind) for i in range(depth)
        )
        self.function = torch.tanh if activation == "tanh" else torch.relu

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        for cell in self.cells:
            state, states = x.new_zeros(len(x), cell.hidden_size), []
            inputs_by_step = x @ cell.weight_ih.T + cell.bias_ih
            for step_input in inputs_by_step.unbind(1):
                state = self.function(step_input + state @ cell.weight_hh.T + cell.bias_hh)
                states.append(state)
            x = torch.stack(states, 1)
        return x, None


def make_cells(scheme: str, activation: str, sizes: tuple[int, int, int]) -> nn.Module:
    """The recurrent part of `sizes` = (inputs, width, depth)."""
    inputs, width, depth = sizes
    if scheme == "unrolled":
        return UnrolledRNN(inputs, width, depth, activation)
    if scheme in FUSED_CELLS:
        return FUSED_CELLS[scheme](inputs, width, depth, batch_first=True)
    return nn.RNN(inputs, width, depth, nonlinearity=activation, batch_first=True)


class SequenceClassifier(nn.Module):
    """Reads a digit in `length` steps of 64 / length pixels and classifies the last state."""

    def __init__(self, cells: nn.Module, width: int, outputs: int, *, length: int) -> None:
        super().__init__()
        self.cells, self.length = cells, length
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x.unflatten(1, (self.length, PIXELS // self.length)))
        y: Tensor = self.head(states[:, -1])
        return y


class CharacterModel(nn.Module):
    """A recurrent language model of characters."""

    def __init__(self, cells: nn.Module, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.cells = cells
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.cells(self.embedding(tokens))[0])
        return y
