"""Sequence specimens: attention, recurrence, packed sequences, routing and sparse embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from leadline import Case
from tests.support.zoo.specimen import energy, specimen

WIDTH = 8
BATCH, TIME = 3, 5


def sequences() -> Tensor:
    return torch.randn(BATCH, TIME, WIDTH)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x)
        return self.norm(x + mixed)


@specimen()
def multihead_attention() -> Case:
    return Case(SelfAttention(), sequences(), loss=energy)


def encoder(*, norm_first: bool, layers: int = 2) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, norm_first=norm_first, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@specimen()
def encoder_pre_norm() -> Case:
    return Case(encoder(norm_first=True), sequences(), loss=energy)


@specimen()
def encoder_post_norm() -> Case:
    return Case(encoder(norm_first=False), sequences(), loss=energy)


@specimen()
def encoder_eval() -> Case:
    """Eval mode, where PyTorch would take a fused fast path if nobody looked."""
    return Case(encoder(norm_first=False).eval(), sequences(), loss=energy)


class Recurrent(nn.Module):
    """Returns the whole output of `nn.LSTM`: a tensor and a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.lstm(x)


@specimen()
def lstm() -> Case:
    return Case(Recurrent(), sequences(), loss=lambda out: energy(out[0]) + energy(out[1][1]))


class Packed(nn.Module):
    """A GRU that takes and returns a PackedSequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> PackedSequence:
        packed, _ = self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return packed._replace(data=self.head(packed.data))


@specimen()
def gru_packed() -> Case:
    return Case(Packed(), (sequences(), torch.tensor([5, 3, 4])), loss=lambda out: energy(out.data))


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(2, WIDTH, 4) / WIDTH**0.5) for _ in range(3))
        self.o = nn.Parameter(torch.randn(2, 4, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in (self.q, self.k, self.v))
        weights = torch.softmax(torch.einsum("bhse,bhte->bhst", q, k) / 2.0, dim=-1)
        return x + torch.einsum("bhst,bhte,hed->bsd", weights, v, self.o)


@specimen()
def einsum_attention() -> Case:
    return Case(EinsumAttention(), sequences(), loss=energy)


class Routed(nn.Module):
    """A mixture of experts: each token goes to one expert by index; an expert may get none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weight, choice = self.router(tokens).softmax(-1).max(-1)
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            mine = (choice == index).nonzero().squeeze(-1)
            if len(mine):
                mixed.index_add_(0, mine, weight[mine, None] * expert(tokens[mine]))
        return x + mixed.view_as(x)


@specimen()
def routed_experts() -> Case:
    return Case(Routed(), sequences(), loss=energy)


@specimen()
def sparse_embedding() -> Case:
    model = nn.Sequential(nn.Embedding(9, WIDTH, sparse=True), nn.Flatten(), nn.Linear(4 * WIDTH, 2))
    return Case(model, torch.tensor([[1, 1, 2, 8], [1, 0, 0, 8]]), torch.tensor([0, 1]), F.cross_entropy)


class EncoderDecoder(nn.Module):
    """`nn.Transformer` with both embeddings: two inputs, two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_source, self.embed_target = nn.Embedding(7, WIDTH), nn.Embedding(7, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 2, 2, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.transformer(self.embed_source(source), self.embed_target(target)))


@specimen()
def encoder_decoder() -> Case:
    source, target = torch.arange(10).view(2, 5) % 7, torch.arange(8).view(2, 4) % 7
    return Case(
        EncoderDecoder(),
        (source, target),
        target,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    )
