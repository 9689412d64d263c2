"""How the output of a branch joins the stream where that is more than a weighted sum.

A connection reads the input of a branch from the state of the stream and writes the branch's output back. The state is
a tensor (one stream, or several along the dimension before the last) or a tuple of tensors. `open_stream` makes it from
the input of a stack, and the module of `make_stream_end` turns it into the stack's output.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.nn.scheme import Join, Place, Scheme

State = Tensor | tuple[Tensor, ...]
MakeNorm = Callable[[int], nn.Module]

# Cited: Xie et al. 2025 (mHC), arXiv 2512.24880: expansion rate n, initial gating factors and Sinkhorn iterations.
STREAMS = 4
INITIAL_GATE = 0.01
SINKHORN_ITERATIONS = 20
# Cited: Kimi Team 2026, arXiv 2603.15031: about 8 blocks keep most of the gain of full attention residuals.
DEPTH_GROUPS = 8
# Cited: the eps of the RMSNorms of Llama and its successors.
EPS = 1e-6


class DynamicTanh(nn.Module):
    r"""$\gamma \odot \tanh(a x) + \beta$ with one learned number $a$: replaces a norm without any statistics.

    Zhu et al. 2025, Transformers without normalization, arXiv 2503.10622: $a = 1/2$ at the start.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((), 0.5))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        return self.weight.view(shape) * torch.tanh(self.slope * x) + self.bias.view(shape)


class Attenuation(nn.Module):
    r"""$s - \mathrm{SiLU}(a)\,\mathrm{sg}(s)$ of the sum $s = x + f$: smaller activations, unchanged gradients.

    $\mathrm{sg}$ stops the gradient. Chen et al. 2025 (GPAS), arXiv 2506.22049; at the start $a = 0$: pre-norm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def read(self, state: Tensor) -> Tensor:
        return state

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        total = state + y
        return total - F.silu(self.gate) * total.detach()


class SphereStep(nn.Module):
    r"""$N(n + |a| \odot (N(f) - n))$ with $n = N(x) = x/\mathrm{rms}(x)$: a step of learned length $|a|$ on a sphere.

    The residual rule of nGPT (Loshchilov et al. 2024, arXiv 2410.01131, and its authors' code), $a = 0.05$ at the
    start. nGPT also normalizes its matrices after every step, which is not part of a residual scheme.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((width,), 0.05))

    def read(self, state: Tensor) -> Tensor:
        return state

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        axis, rate = (1, self.rate.view(-1, 1, 1)) if y.ndim == 4 else (-1, self.rate)
        start = _unit(state, axis)
        return _unit(start + rate.abs() * (_unit(y, axis) - start), axis)


class DepthAttention(nn.Module):
    r"""$h = \sum_i \mathrm{softmax}_i(w \cdot \mathrm{RMSNorm}(v_i))\,v_i$ over the values $v_i$ of earlier layers.

    $v_0$ is the input of the stack. In full attention residuals the output of every sub-layer is a value. In the block
    form, the outputs of the sub-layers of a group add up to one value, so that a stack of any depth has few: the first
    sub-layer of a group `starts_value`, the others add to the last one. Attention Residuals, arXiv 2603.15031; the
    query $w$ is zero at the start, so that $h$ is the mean of all $v_i$, which a norm cannot tell from their sum: the
    function of pre-norm. The norm has no gain of its own, because it would multiply $w$. The first sub-layer has one
    value and no query.
    """

    def __init__(self, width: int, *, has_query: bool = True, starts_value: bool = True) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width)) if has_query else None
        self.starts_value = starts_value

    def read(self, state: tuple[Tensor, ...]) -> Tensor:
        if self.query is None:
            return state[0]
        values = torch.stack(state)
        # The norm divides the scores, not the values: a normalized copy of them would be kept for the backward pass.
        inverse_rms = (values.square().mean(-1) + EPS).rsqrt()
        weights = ((values @ self.query) * inverse_rms).softmax(dim=0)
        return (weights.unsqueeze(-1) * values).sum(dim=0)

    def write(self, state: tuple[Tensor, ...], y: Tensor) -> tuple[Tensor, ...]:
        return (*state, y) if self.starts_value else (*state[:-1], state[-1] + y)


class DualStream(nn.Module):
    r"""A post-norm stream $x \leftarrow \mathrm{LN}(x + f(x))$ beside a plain sum $d \leftarrow d + f(x)$.

    Xie et al. 2023 (ResiDual), arXiv 2304.14802; the output is $x + \mathrm{LN}(d)$.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def read(self, state: tuple[Tensor, ...]) -> Tensor:
        return state[0]

    def write(self, state: tuple[Tensor, ...], y: Tensor) -> tuple[Tensor, ...]:
        return self.norm(state[0] + y), state[1] + y


class SiameseStreams(nn.Module):
    r"""A post-norm stream $p \leftarrow \mathrm{LN}(p + f/\sqrt{2l})$ beside a plain sum $y \leftarrow y + f$.

    Both make the input of the branch, $p + \mathrm{LN}(y)$, which the sub-layer's own norm reads; $2l$ are the
    sub-layers up to the end of block $l$. The input of the stack is normalized before it becomes $p$. Li et al. 2026
    (SiameseNorm), arXiv 2602.08064, and its authors' code.
    """

    def __init__(self, width: int, place: Place, norm: MakeNorm) -> None:
        super().__init__()
        self.norm_entry = norm(width) if place.number == 1 else None
        self.norm_sum = norm(width)
        self.norm_post = norm(width)
        self.scale = (place.layout.sublayers * (place.index + 1)) ** -0.5

    def _normalized(self, state: tuple[Tensor, ...]) -> Tensor:
        entered: Tensor = state[0] if self.norm_entry is None else self.norm_entry(state[0])
        return entered

    def read(self, state: tuple[Tensor, ...]) -> Tensor:
        read: Tensor = self._normalized(state) + self.norm_sum(state[1])
        return read

    def write(self, state: tuple[Tensor, ...], y: Tensor) -> tuple[Tensor, ...]:
        return self.norm_post(self._normalized(state) + self.scale * y), state[1] + y


class HyperConnection(nn.Module):
    r"""$X \leftarrow A X + b\,f(c X)$ for $n$ streams $X$: static hyper-connections.

    $A$ ($n \times n$) mixes the streams, $c$ reads the input of the branch and $b$ writes its output. Zhu et al. 2024,
    arXiv 2409.19606: $A = I$, $b = 1$, and $c$ picks one stream in turn, which is pre-norm at the start.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        first = F.one_hot(torch.tensor((place.number - 1) % STREAMS), STREAMS)
        self.mix = nn.Parameter(torch.eye(STREAMS))
        self.reads = nn.Parameter(first.float())
        self.writes = nn.Parameter(torch.ones(STREAMS))

    def read(self, state: Tensor) -> Tensor:
        return torch.einsum("n,...nd->...d", self.reads, state)

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        return self.mix @ state + self.writes.unsqueeze(-1) * y.unsqueeze(-2)


class ConstrainedConnection(nn.Module):
    r"""$X \leftarrow A X + b\,f(c X)$ with $c = \sigma(\tilde c)$, $b = 2\sigma(\tilde b)$ and a doubly stochastic $A$.

    Each of $\tilde c$, $\tilde b$ and the logits of $A$ is a learned bias plus a gate (0.01 at the start) times a
    linear map of the normalized streams. mHC (Xie et al. 2025, arXiv 2512.24880, its equations for the three maps)
    makes $A$ by Sinkhorn iterations on $\exp$ of its logits; mHC-lite (Yang and Gao 2026, arXiv 2601.05732) as a
    softmax-weighted mean of all permutation matrices, which is doubly stochastic exactly.

    The biases are chosen so that at the start $c$ reads mostly one stream in turn, with weights that sum to 1, $b$ is 1
    and $A$ is nearly the identity: as all streams are still equal, the function of pre-norm. Reading all streams alike
    would give them the same gradient, and they would stay equal.
    """

    permutations: Tensor

    def __init__(self, width: int, place: Place, *, lite: bool) -> None:
        super().__init__()
        self.lite = lite
        self.norm = nn.RMSNorm(STREAMS * width, eps=EPS, elementwise_affine=False)
        orders = list(itertools.permutations(range(STREAMS)))
        matrices = torch.eye(STREAMS)[torch.tensor(orders)]
        self.register_buffer("permutations", matrices, persistent=False)
        mixes = len(orders) if lite else STREAMS**2
        self.sizes = [STREAMS, STREAMS, mixes]
        self.project = nn.Parameter(torch.zeros(sum(self.sizes), STREAMS * width))
        self.gates = nn.Parameter(torch.full((3,), INITIAL_GATE))
        self.base = nn.Parameter(
            torch.cat((_start_of_reads(place), torch.zeros(STREAMS), self._start_of_mix(mixes)))
        )

    def _start_of_mix(self, size: int) -> Tensor:
        """Logits that give the identity nearly all the weight."""
        if self.lite:
            return NEAR_IDENTITY * F.one_hot(torch.tensor(0), size).float()
        return NEAR_IDENTITY * torch.eye(STREAMS).flatten()

    def maps(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """$c$, $b$ and $A$ for each token."""
        parts = torch.split(F.linear(self.norm(state.flatten(-2)), self.project), self.sizes, dim=-1)
        bases = torch.split(self.base, self.sizes)
        reads, writes, mix = (g * p + b for g, p, b in zip(self.gates, parts, bases, strict=True))
        return reads.sigmoid(), 2 * writes.sigmoid(), self._mixing(mix)

    def _mixing(self, logits: Tensor) -> Tensor:
        if self.lite:
            return torch.einsum("...p,pij->...ij", logits.softmax(-1), self.permutations)
        log: Tensor = torch.unflatten(logits, -1, (STREAMS, STREAMS))
        for _ in range(SINKHORN_ITERATIONS):
            log = log.log_softmax(-1)
            log = log.log_softmax(-2)
        return log.exp()

    def read(self, state: Tensor) -> Tensor:
        reads, _, _ = self.maps(state)
        return torch.einsum("...n,...nd->...d", reads, state)

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        _, writes, mix = self.maps(state)
        return mix @ state + writes.unsqueeze(-1) * y.unsqueeze(-2)


# Derived: e^6 over the sum of four such entries leaves 0.7 % of a stream to the other three.
NEAR_IDENTITY = 6.0


# Heuristic: the share of the stream that a layer mostly reads; the others share the rest, so that each has a gradient.
MAIN_SHARE = 0.7


def _start_of_reads(place: Place) -> Tensor:
    """Logits of reading weights that sum to 1: most of one stream in turn, and a little of the others."""
    shares = torch.full((STREAMS,), (1 - MAIN_SHARE) / (STREAMS - 1))
    shares[(place.number - 1) % STREAMS] = MAIN_SHARE
    return shares.logit()


def _unit(x: Tensor, axis: int) -> Tensor:
    """`x` over its root mean square along the features."""
    return x * (x.square().mean(axis, keepdim=True) + EPS).rsqrt()


# From a scheme to its modules.


def make_connection(scheme: Scheme, place: Place, width: int, norm: MakeNorm) -> nn.Module | None:
    """The connection of one sub-layer; None where the branch is only added."""
    kinds: dict[Join, Callable[[], nn.Module]] = {
        "attenuated": Attenuation,
        "sphere": lambda: SphereStep(width),
        "depth-attention": lambda: DepthAttention(width, has_query=place.number > 1),
        "block-depth-attention": lambda: DepthAttention(
            width, has_query=place.number > 1, starts_value=_starts_value(place)
        ),
        "dual": lambda: DualStream(norm(width)),
        "siamese": lambda: SiameseStreams(width, place, norm),
        "hyper": lambda: HyperConnection(place),
        "mhc": lambda: ConstrainedConnection(width, place, lite=False),
        "mhc-lite": lambda: ConstrainedConnection(width, place, lite=True),
    }
    return None if scheme.join == "sum" else kinds[scheme.join]()


def _starts_value(place: Place) -> bool:
    """Whether the sub-layer is the first of one of the `DEPTH_GROUPS` groups of the stack."""
    return (place.number - 1) % -(-place.total // DEPTH_GROUPS) == 0


def open_stream(scheme: Scheme, x: Tensor) -> State:
    """The state of the stream at the start of a stack whose input is `x`."""
    if scheme.join in ("depth-attention", "block-depth-attention"):
        return (x,)
    if scheme.join in ("dual", "siamese"):
        return x, x
    if scheme.join in ("hyper", "mhc", "mhc-lite"):
        return x.unsqueeze(-2).expand(*x.shape[:-1], STREAMS, x.shape[-1])
    return x


class StreamSum(nn.Module):
    """The mean of all streams."""

    def forward(self, state: Tensor) -> Tensor:
        return state.mean(-2)


class DualEnd(nn.Module):
    r"""$x + \mathrm{LN}(d)$."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, state: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = state[0] + self.norm(state[1])
        return out


class DepthAttentionEnd(DepthAttention):
    """The last depth attention, whose result is the output of the stack."""

    def forward(self, state: tuple[Tensor, ...]) -> Tensor:
        return self.read(state)


def make_stream_end(scheme: Scheme, width: int, norm: MakeNorm) -> nn.Module | None:
    """The module that makes one tensor of the state; None if the state is one tensor."""
    if scheme.join in ("depth-attention", "block-depth-attention"):
        return DepthAttentionEnd(width)
    if scheme.join in ("dual", "siamese"):
        return DualEnd(norm(width))
    return StreamSum() if scheme.join in ("hyper", "mhc", "mhc-lite") else None


def make_scheme_norm(scheme: Scheme, norm: MakeNorm) -> MakeNorm:
    """What makes the norms of a scheme: `norm`, or `DynamicTanh` where the scheme has it."""
    return DynamicTanh if scheme.norm == "tanh" else norm
