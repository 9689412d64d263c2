"""Feed-forward branches: GELU, ReLU and gated SwiGLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from leadline.nn.activations import find_activation, gaussian_moments
from leadline.nn.lean import Remade, lean_feed_forward, lean_linear
from leadline.nn.options import Options
from leadline.nn.roles import RoleWeight
from leadline.nn.undrawn import make_linear


class FeedForward(nn.Module):
    r"""$W_2\,\phi(W_1 x)$, or $W_2(\mathrm{SiLU}(W_g x) \odot W_v x)$ for `swiglu`, with $W_g, W_v$ in one
    packed matrix."""

    def __init__(self, width: int, *, options: Options, inner_norm: bool = False) -> None:
        super().__init__()
        hidden = options.hidden_width(width)
        self.width, self.gated, self.dropout = width, options.feed_forward == "swiglu", options.dropout
        self.activation = "silu" if self.gated else options.feed_forward
        self.fc1 = make_linear(width, 2 * hidden if self.gated else hidden, bias=options.bias)
        self.fc2 = make_linear(hidden, width, bias=options.bias)
        self.norm_inner = options.make_norm(hidden) if inner_norm else None
        self.lean = options.lean
        self._function = find_activation(self.activation)

    def forward(self, x: Tensor | Remade) -> Tensor:
        if self.lean and self.norm_inner is None:
            y = lean_feed_forward(self.fc1, self._activate, self.fc2, x)
        else:
            h = self._activate(lean_linear(self.fc1, x))
            y = self.fc2(h if self.norm_inner is None else self.norm_inner(h))
        return F.dropout(y, self.dropout, self.training) if self.dropout else y

    def _activate(self, h: Tensor) -> Tensor:
        if not self.gated:
            return self._function(h)
        gate, value = h.chunk(2, dim=-1)
        return F.silu(gate) * value

    def role_weights(self) -> list[RoleWeight]:
        """A gate and a value of unit variance multiply to $E[\\phi^2] \\cdot 1$, so both kinds feed fc2 with
        $E[\\phi^2]$."""
        fed = 1.0 if self.norm_inner is not None else gaussian_moments(self.activation).square
        first = self.fc1.weight.chunk(2) if self.gated else (self.fc1.weight,)
        inner = [RoleWeight(role="fc1", weight=weight) for weight in first]
        return [*inner, RoleWeight(role="fc2", weight=self.fc2.weight, second_moment=fed)]
