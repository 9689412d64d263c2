"""Residual: one module that puts a branch on the residual path of a stack, as a scheme says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn.lean import Recomputed
from leadline.nn.roles import apply_gains_, role_weights
from leadline.nn.scheme import Layout, Place, Scheme
from leadline.nn.schemes import find_scheme
from leadline.nn.streams import State, make_connection, make_scheme_norm

ALONE = Layout()


class Residual(nn.Module):
    r"""`branch` on a residual path, with the norms and scales of `scheme`.

    $$ y = \mathrm{post}(\alpha x + w\,\mathrm{out}(f(s\,\mathrm{pre}(x)))) $$
    Here $x$ is the stream, $f$ the branch, $\alpha$ the skip weight, $w$ the branch weight and $s$ the scale after the
    pre-norm. `index` (from 0) and `depth` count the blocks of the stack. `layout` says how many residual sub-layers a
    block has and which of them this is; the default is one per block. The constructor applies the scheme's initial
    gains and zeros to the branch once, on top of its own initialization. `norm` builds a norm of a given width (the
    branch's `width` and, if it differs, `inputs`; else the rows of its last matrix). `shortcut` replaces the identity
    on the skip path (a projection where the shape changes). Extra arguments of `forward` go to the branch.

    Fixed weights cost nothing, because they are part of the add; learned ones are the parameter `weight` (or
    `skip_weight`). Keys of the state dict: `branch.*`, `norm_pre.*`, `norm_out.*`, `norm_post.*`, `weight`,
    `skip_weight`, `bias_in`, `bias_out`, `shortcut.*`, `norm_entry.*`, `connection.*`, each present only if the scheme
    needs it. The `inner` norm of a scheme belongs to the branch.
    """

    def __init__(  # noqa: PLR0913  (the names of the public contract, and three ways to adapt it)
        self,
        branch: nn.Module,
        *,
        scheme: str | Scheme | None = None,
        index: int,
        depth: int,
        layout: Layout = ALONE,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        shortcut: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.place = Place(index=index, depth=depth, layout=layout)
        self.scheme = find_scheme(scheme, depth)
        self.branch = branch
        self.shortcut = shortcut
        self.lean = False
        norm = make_scheme_norm(self.scheme, norm)
        self._add_norms(norm)
        self._add_weights()
        width = width_of(branch) if self.scheme.join != "sum" else 0
        self.connection = make_connection(self.scheme, self.place, width, norm)
        apply_gains_(branch, self.scheme, self.place)

    def _add_norms(self, norm: Callable[[int], nn.Module]) -> None:
        positions = set(self.scheme.norms_at(self.place)) - {"inner"}
        width = width_of(self.branch) if positions else 0
        self.norm_entry = norm(getattr(self.branch, "inputs", width)) if "entry" in positions else None
        self.norm_pre = norm(getattr(self.branch, "inputs", width)) if "pre" in positions else None
        self.norm_out = norm(width) if "out" in positions else None
        self.norm_post = norm(width) if "post" in positions else None

    def _add_weights(self) -> None:
        scheme, place = self.scheme, self.place
        self.skip = scheme.skip(place) if scheme.has_skip else 0.0
        self.branch_weight = scheme.branch(place)
        self.norm_scale = scheme.norm_scale(place)
        size = (width_of(self.branch),) if scheme.learned in ("vector", "skip") else ()
        learns_branch = scheme.learned in ("scalar", "vector")
        self.weight = nn.Parameter(torch.full(size, self.branch_weight)) if learns_branch else None
        self.skip_weight = nn.Parameter(torch.full(size, self.skip)) if scheme.learned == "skip" else None
        self.bias_in = nn.Parameter(torch.zeros(())) if scheme.scalar_biases else None
        self.bias_out = nn.Parameter(torch.zeros(())) if scheme.scalar_biases else None

    def forward(self, x: Any, *arguments: Any, bypass: Tensor | None = None) -> Any:
        """The stream after this sub-layer; `bypass` is added before the last norm (B2T connection).

        In a scheme with several streams, `x` and the result are the state of `leadline.nn.streams`.
        """
        if self.connection is not None:
            return self._connect(x, *arguments)
        if self.norm_entry is not None:
            x = self.norm_entry(x)
        h = Recomputed(self._feed, x) if self.lean and self.norm_pre is not None else self._feed(x)
        y = self.branch(h, *arguments)
        if self.norm_out is not None:
            y = self.norm_out(y)
        y = self._join(x if self.shortcut is None else self.shortcut(x), y)
        if bypass is not None:
            y = y + bypass
        return y if self.norm_post is None else self.norm_post(y)

    def _connect(self, state: State, *arguments: Any) -> State:
        connection: Any = self.connection
        read = connection.read(state)
        y = self.branch(self._feed(read), *arguments)
        if self.shortcut is not None:  # a stream of one tensor, whose shape changes here
            state = self.shortcut(state)
        written: State = connection.write(state, y)
        return written

    def _feed(self, x: Tensor) -> Tensor:
        h = x if self.norm_pre is None else self.norm_pre(x)
        if self.norm_scale != 1.0:
            h = h * self.norm_scale
        return h if self.bias_in is None else h + self.bias_in

    def _join(self, x: Tensor, y: Tensor) -> Tensor:
        if self.weight is not None:
            y = y * _per_channel(self.weight, y)
            return x + y if self.bias_out is None else x + y + self.bias_out
        if self.skip_weight is not None:
            return x * _per_channel(self.skip_weight, x) + y
        if self.branch_weight != 1.0:
            if self._may_overwrite(x, y):
                return y.mul_(self.branch_weight).add_(x)
            return torch.add(x, y, alpha=self.branch_weight)
        if self.skip == 0.0:
            return y
        if self._may_overwrite(x, y):
            return y.add_(x, alpha=self.skip)
        return x + y if self.skip == 1.0 else torch.add(y, x, alpha=self.skip)

    def _may_overwrite(self, x: Tensor, y: Tensor) -> bool:
        """Whether the sum may overwrite the branch's output: the branches here end in a linear map or dropout."""
        return self.lean and self.norm_out is None and y.dtype == x.dtype

    def extra_repr(self) -> str:
        place = self.place
        return f"scheme={self.scheme.name!r}, index={place.index}, depth={place.depth}"


def _per_channel(weight: Tensor, y: Tensor) -> Tensor:
    """A learned vector, shaped for channels-first images; any other weight unchanged."""
    return weight.view(-1, 1, 1) if weight.ndim == 1 and y.ndim == 4 else weight


def width_of(branch: nn.Module) -> int:
    """The width of the branch's output: its attribute `width`, or the rows of its last matrix."""
    width = getattr(branch, "width", None)
    if isinstance(width, int):
        return width
    parts = role_weights(branch)
    if not parts:
        raise InputError(
            expected="a branch with an int attribute `width`, or with a linear or convolution layer",
            got=f"a {type(branch).__name__} with neither",
            fix="give the branch an int attribute `width`",
        )
    return parts[-1].weight.shape[0]


# Admin's profiling pass: skip weights from the measured variances of the branches.


@torch.no_grad()
def profile_admin_(model: nn.Module, *inputs: Any) -> list[float]:
    r"""Set the skip weights $\omega_i$ of an Admin model in place, and return them.

    $$ \omega_i^2 = \mathrm{Var}(x_0) + \sum_{j<i} \mathrm{Var}(f_j) $$
    where $f_j$ is the output of branch $j$ with every $\omega = 1$ and $x_0$ the input of the stack, all on
    `inputs`, the arguments of one forward pass. The $\omega_i$ are in the order of the forward pass. Each
    encoder or decoder counts from its own first sub-layer. Liu et al. 2020 (Admin), arXiv 2004.08249: the
    profiling and initialization phases.
    """
    residuals = [m for m in model.modules() if isinstance(m, Residual) and m.skip_weight is not None]
    if not residuals:
        raise InputError(
            expected="a model with scheme='admin'",
            got="a model without learned skip weights",
            fix="build it with scheme='admin', or skip this call",
        )
    stream: dict[Residual, float] = {}
    branch: dict[Residual, float] = {}
    handles = []
    for residual in residuals:
        residual.skip_weight.fill_(1.0)  # type: ignore[union-attr]
        handles.append(
            residual.register_forward_pre_hook(lambda m, args: _store_variance(stream, m, args[0]))
        )
        handles.append(
            residual.branch.register_forward_hook(
                lambda b, args, y, r=residual: _store_variance(branch, r, y)
            )
        )
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return _set_skips(list(stream), stream, branch)


def _store_variance(variances: dict[Residual, float], residual: Residual, value: Tensor) -> None:
    variances[residual] = float(value.float().var())


def _set_skips(
    order: list[Residual], stream: dict[Residual, float], branch: dict[Residual, float]
) -> list[float]:
    total, omegas = 0.0, []
    for residual in order:
        if residual.place.number == 1:
            total = stream[residual]
        omegas.append(math.sqrt(total))
        residual.skip_weight.fill_(omegas[-1])  # type: ignore[union-attr]
        total += branch[residual]
    return omegas
