"""Samples of ops that move, take, repeat, join or make elements."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.theory_samples.case import IMAGE, MANY, Case, X


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


ROWS = torch.randint(32, (48,), generator=_generator())
SCORES = ((8192, 16),)
PLACES = torch.randint(64, (32, 64, 64), generator=_generator())
DISTINCT = torch.rand(32, 64, 64, generator=_generator()).argsort(1)[:, :16]
MASK = torch.ones(64, 64).triu(1).bool()
FLOOR, CEILING = torch.tensor(-1e30), torch.tensor(1e30)
TALL = torch.empty(2, 32, 64, 64)
DOUBLE = torch.empty(1, dtype=torch.float64)
LIKE = torch.empty(64, 32, 64)


def made(maker: Callable[[Tensor], Tensor]) -> Case:
    """A new constant tensor added to the operand; the sum shows its moments."""
    return Case(lambda x: x + maker(x), mean=0.5, within=True, kurtosis=3)


def _written(x: Tensor) -> Tensor:
    whole = x.clone()
    whole[:, :16] = 2.0
    return whole


def allocated(maker: Callable[[Tensor], Tensor]) -> Case:
    """New memory, filled by two writes into parts of it."""

    def filled(x: Tensor) -> Tensor:
        whole = maker(x)
        whole[:, :16] = x[:, :16]
        whole[:, 16:] = 2 * x[:, 16:]
        return whole

    return Case(filled, mean=0.5, within=True)


def _causal(logits: Tensor) -> Tensor:
    """With a mask made in the pass, so that its making is on record."""
    return torch.ones(64, 64).triu(1).bool()


def square(maker: Callable[[Tensor, Tensor], Tensor]) -> Case:
    """Softmax of logits with a causal mask."""
    return Case(lambda x: maker(x, _causal(x)).softmax(-1), ((64, 64, 64),), draws=MANY, within=True)


LAYOUT: dict[str, Case] = {
    "cat": Case(lambda x, y: torch.cat([x, 2 * y], -1), X * 2, mean=0.5),
    "stack": Case(lambda x, y: torch.stack([x, 2 * y]), X * 2, mean=0.5),
    "pad": Case(lambda x: F.pad(x, (3, 5)), mean=0.5),
    "getitem": Case(lambda x: x[:, 5:60, ::2], mean=0.5, draws=MANY),
    "chunk": Case(lambda x: x.chunk(4, -1)[0], mean=0.5, draws=MANY),
    "expand": Case(lambda x: x.unsqueeze(0).expand(3, 32, 64, 64), mean=0.5),
    "repeat": Case(lambda x: x.repeat(2, 1, 1), mean=0.5),
    "reshape": Case(lambda x: x.reshape(64, 32, 64), mean=0.5),
    "transpose": Case(lambda x: x.transpose(0, 1), mean=0.5),
    "permute": Case(lambda x: x.permute(2, 0, 1), mean=0.5),
    "flip": Case(lambda x: x.flip(0), mean=0.5),
    "roll": Case(lambda x: x.roll(3, 1), mean=0.5),
    "where": square(lambda x, mask: torch.where(mask, -1e9, x)),
    "masked_fill": square(lambda x, mask: x.masked_fill(mask, -1e9)),
    "max": Case(lambda x: torch.max(x, FLOOR), mean=0.5),
    "min": Case(lambda x: torch.min(x, CEILING), mean=0.5),
    "concat": Case(lambda x, y: torch.concat([x, 2 * y], 1), X * 2, mean=0.5),
    "concatenate": Case(lambda x, y: torch.concatenate([x, 2 * y], 0), X * 2, mean=0.5),
    "hstack": Case(lambda x, y: torch.hstack([x, 2 * y]), X * 2, mean=0.5),
    "vstack": Case(lambda x, y: torch.vstack([x, 2 * y]), X * 2, mean=0.5),
    "dstack": Case(lambda x, y: torch.dstack([x, 2 * y]), X * 2, mean=0.5),
    "copy": Case(lambda x: torch.zeros_like(x).copy_(x), mean=0.5),
    "index": Case(lambda x: torch.ops.aten.index(x, [None, ROWS]), mean=0.5),
    "select": Case(lambda x: x.select(1, 3), ((256, 8, 64),), mean=0.5, draws=MANY),
    "unbind": Case(lambda x: x.unbind(1)[3], ((256, 8, 64),), mean=0.5, draws=MANY),
    "narrow": Case(lambda x: x.narrow(1, 8, 24), mean=0.5, draws=MANY),
    "split": Case(lambda x: x.split(16, -1)[1], mean=0.5, draws=MANY),
    "split_with_sizes": Case(lambda x: x.split_with_sizes([16, 48], -1)[1], mean=0.5, draws=MANY),
    "tensor_split": Case(lambda x: x.tensor_split(4, -1)[1], mean=0.5, draws=MANY),
    "hsplit": Case(lambda x: x.hsplit(4)[1], mean=0.5, draws=MANY),
    "vsplit": Case(lambda x: x.vsplit(4)[1], mean=0.5, draws=MANY),
    "dsplit": Case(lambda x: x.dsplit(4)[1], mean=0.5, draws=MANY),
    "index_select": Case(lambda x: x.index_select(1, ROWS), mean=0.5),
    "take_along_dim": Case(lambda x: x.take_along_dim(PLACES, 1), mean=0.5),
    "gather": Case(lambda x: x.gather(1, PLACES), mean=0.5),
    "gather of the largest": Case(lambda x: _gathered(torch.sigmoid(x)), SCORES, draws=MANY, beyond=0.005),
    "topk": Case(lambda x: x.topk(3)[0], SCORES, mean=0.5, draws=MANY, beyond=0.005),
    "topk of softmax": Case(
        lambda x: x.softmax(-1).topk(2)[0], SCORES, draws=MANY, beyond=0.01, gradient=False
    ),
    "topk of the smallest": Case(
        lambda x: x.topk(2, 1, largest=False)[0], ((2048, 8, 8),), draws=MANY, beyond=0.005
    ),
    "topk of a function": Case(lambda x: torch.sigmoid(x).topk(2)[0], SCORES, draws=MANY, beyond=0.005),
    "expand_as": Case(lambda x: x.expand_as(TALL), mean=0.5),
    "broadcast_to": Case(lambda x: torch.broadcast_to(x, (2, 32, 64, 64))),
    "tile": Case(lambda x: x.tile(3, 1, 1), mean=0.5),
    "repeat_interleave": Case(lambda x: x.repeat_interleave(2, 1), mean=0.5),
    "unfold": Case(lambda x: x.unfold(1, 8, 4), mean=0.5),
    "as_strided": Case(lambda x: x.as_strided((32, 64, 16), (4096, 64, 4)), mean=0.5),
    "view": Case(lambda x: x.view(64, 32, 64), mean=0.5),
    "view_as": Case(lambda x: x.view_as(LIKE), mean=0.5),
    "reshape_as": Case(lambda x: x.reshape_as(LIKE), mean=0.5),
    "flatten": Case(lambda x: x.flatten(1), mean=0.5),
    "unflatten": Case(lambda x: x.unflatten(1, (8, 8)), mean=0.5),
    "ravel": Case(lambda x: x.ravel(), mean=0.5),
    "squeeze": Case(lambda x: x.squeeze(1), ((512, 1, 256),), mean=0.5),
    "unsqueeze": Case(lambda x: x.unsqueeze(1), mean=0.5),
    "contiguous": Case(lambda x: x.transpose(0, 1).contiguous(), mean=0.5),
    "clone": Case(lambda x: x.clone(), mean=0.5),
    "alias": Case(lambda x: torch.ops.aten.alias(x), mean=0.5),
    "to": Case(lambda x: x.to(torch.float64), mean=0.5),
    "type": Case(lambda x: x.type(torch.float64), mean=0.5),
    "type_as": Case(lambda x: x.type_as(DOUBLE), mean=0.5),
    "float": Case(lambda x: x.double().float(), mean=0.5),
    "double": Case(lambda x: x.double(), mean=0.5),
    "half": Case(lambda x: x.half(), mean=0.5),
    "bfloat16": Case(lambda x: x.bfloat16(), mean=0.5),
    "as_tensor": Case(lambda x: torch.as_tensor(x, dtype=torch.float64), mean=0.5),
    "asarray": Case(lambda x: torch.asarray(x, dtype=torch.float64, requires_grad=True), mean=0.5),
    "requires_grad": Case(lambda x: x.requires_grad_(), mean=0.5),
    "detach": Case(lambda x: x + x.detach(), mean=0.5, within=True),
    "data": Case(lambda x: x + x.data, mean=0.5, within=True),
    "swapaxes": Case(lambda x: x.swapaxes(0, 1), mean=0.5),
    "swapdims": Case(lambda x: x.swapdims(0, 1), mean=0.5),
    "t": Case(lambda x: x.t(), ((512, 256),), mean=0.5),
    "T": Case(lambda x: x.T, ((512, 256),), mean=0.5),
    "mT": Case(lambda x: x.mT, mean=0.5),
    "H": Case(lambda x: x.H, ((512, 256),), mean=0.5),
    "mH": Case(lambda x: x.mH, mean=0.5),
    "movedim": Case(lambda x: x.movedim(0, 2), mean=0.5),
    "moveaxis": Case(lambda x: x.moveaxis(0, 2), mean=0.5),
    "channel_shuffle": Case(lambda x: F.channel_shuffle(x, 4), IMAGE, mean=0.5),
    "pixel_shuffle": Case(lambda x: F.pixel_shuffle(x, 2), IMAGE, mean=0.5),
    "pixel_unshuffle": Case(lambda x: F.pixel_unshuffle(x, 2), IMAGE, mean=0.5),
    "rot90": Case(lambda x: x.rot90(1, (1, 2)), mean=0.5),
    "setitem": Case(_written, mean=0.5),
    "index_copy": Case(lambda x, y: x.index_copy(1, torch.arange(16), 2 * y), (*X, (32, 16, 64)), mean=0.5),
    "index_add": Case(lambda x, y: x.index_add(1, torch.arange(16), 2 * y), (*X, (32, 16, 64)), mean=0.5),
    "index_fill": Case(lambda x: x.index_fill(1, torch.arange(16), 2.0), mean=0.5),
    "scatter": Case(lambda x: x.scatter(1, DISTINCT, 2.0), mean=0.5),
    "scatter_add": Case(lambda x, y: x.scatter_add(1, DISTINCT, 2 * y), (*X, (32, 16, 64)), mean=0.5),
    "fill": made(lambda x: torch.zeros_like(x).fill_(2.0)),
    "empty": allocated(lambda x: torch.empty(x.shape)),
    "empty_like": allocated(torch.empty_like),
    "empty_strided": allocated(lambda x: torch.empty_strided(x.shape, x.stride())),
    "empty_permuted": allocated(lambda x: torch.empty_permuted(x.shape, (0, 1, 2))),
    "new_empty": allocated(lambda x: x.new_empty(x.shape)),
    "new_empty_strided": allocated(lambda x: x.new_empty_strided(x.shape, x.stride())),
    "zero": made(lambda x: torch.zeros_like(x).zero_()),
    "zeros": made(lambda x: torch.zeros(x.shape)),
    "ones": made(lambda x: torch.ones(x.shape)),
    "zeros_like": made(torch.zeros_like),
    "ones_like": made(torch.ones_like),
    "new_zeros": made(lambda x: x.new_zeros(x.shape)),
    "new_ones": made(lambda x: x.new_ones(x.shape)),
    "full": made(lambda x: torch.full(x.shape, 2.0)),
    "full_like": made(lambda x: torch.full_like(x, 2.0)),
    "new_full": made(lambda x: x.new_full(x.shape, 2.0)),
    "tensor": made(lambda x: torch.tensor(2.0)),
    "scalar_tensor": made(lambda x: torch.scalar_tensor(2.0)),
    "new_tensor": made(lambda x: x.new_tensor(2.0)),
    "arange": made(lambda x: torch.arange(64.0) / 64),
    "linspace": made(lambda x: torch.linspace(-1.0, 2.0, 64)),
    "eye": made(lambda x: 8 * torch.eye(64)),
    "rand": made(lambda x: torch.rand(x.shape)),
    "rand_like": made(torch.rand_like),
    "randn": made(lambda x: torch.randn(x.shape)),
    "randn_like": made(torch.randn_like),
    "normal": made(lambda x: torch.zeros_like(x).normal_()),
    "uniform": made(lambda x: torch.zeros_like(x).uniform_()),
    "exponential": made(lambda x: torch.zeros_like(x).exponential_()),
}


def _gathered(scores: Tensor) -> Tensor:
    return scores.gather(-1, scores.detach().topk(2).indices)


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(-1)[0],
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(),
    "index_put": lambda x: x.index_put((ROWS,), torch.tensor(1.0)),
    "masked_scatter": lambda x: x.masked_scatter(MASK, torch.ones(32 * 64 * 64)),
}
