r"""QK-norm for existing attention modules: queries and keys are normalized over the features of each head.

$$ \mathrm{softmax}\Big(\frac{\mathrm{norm}(q)\cdot\mathrm{norm}(k)}{\sqrt d}\Big) $$
where $d$ is the number of features of a head: logits of random queries and keys have unit variance, and none exceeds
$\sqrt d$ times the norms' gains (Henry et al. 2020, arXiv 2010.04245; Dehghani et al. 2023, arXiv 2302.05442, section
3). Norms are submodules of what they are registered on, so that deep copies, pickles and state dicts of the model
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.errors import InputError
from leadline.nn.attention import CrossAttention, SelfAttention

QUERY, KEY = "norm_query", "norm_key"
Own = SelfAttention | CrossAttention


@dataclass(frozen=True, slots=True)
class HeadNormed:
    """A forward hook for a projection to queries or keys: its output through its submodule `norm`, head by head."""

    norm: str
    width: int
    """Features of a head."""

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        heads = output.reshape(*output.shape[:-1], -1, self.width)
        normed: Tensor = module.get_submodule(self.norm)(heads)
        return normed.flatten(-2)


def qk_norm_(attention: nn.Module, head_width: int) -> nn.Module:
    """Give an attention norms for its queries and keys, `norm_query` and `norm_key`; returns the attention.

    Works on `nn.MultiheadAttention`, on the attention of `leadline.nn`, and on any module whose own code calls
    `F.scaled_dot_product_attention`. Rotary positions, if any, are applied before the norm in the last case.
    """
    for name, norm in norms_for(attention, head_width).items():
        setattr(attention, name, norm)
    if not isinstance(attention, Own):
        attention.forward = NormedAttention(attention)
        attention.register_forward_pre_hook(unfused)
    return attention


def norms_for(attention: nn.Module, head_width: int) -> dict[str, nn.Module]:
    """The two norms, with dtype, device and mode of the attention; raises for an attention that cannot have them."""
    if getattr(attention, QUERY, None) is not None:
        raise InputError(
            expected="an attention without QK-norm", got="one that already has it", fix="keep it unchanged"
        )
    if isinstance(attention, nn.MultiheadAttention) and (
        attention.bias_k is not None or attention.add_zero_attn
    ):
        raise InputError(
            expected="an nn.MultiheadAttention without add_bias_kv and add_zero_attn",
            got="one with such an extra key",
            fix="build the attention without it",
        )
    like = next((p for p in attention.parameters() if p.is_floating_point()), None)
    norms = {name: nn.RMSNorm(head_width).train(attention.training) for name in (QUERY, KEY)}
    return {name: norm if like is None else norm.to(like.device, like.dtype) for name, norm in norms.items()}


def unfused(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """A hook that does nothing: its presence makes PyTorch's fused encoder layers call the attention's forward."""


class NormedAttention:
    """A forward for an attention module in which its `norm_query` and `norm_key` are applied before the logits."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if isinstance(self.module, nn.MultiheadAttention):
            return _multi_head(self.module, *arguments, **named)
        with _Norming(self.module):
            return type(self.module).forward(self.module, *arguments, **named)


class _Norming(TorchFunctionMode):
    """Normalizes the queries and keys of every fused attention that the module calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **named)
        named |= dict(zip(("query", "key"), args[:2], strict=False))
        named["query"] = getattr(self.module, QUERY)(named["query"])
        named["key"] = getattr(self.module, KEY)(named["key"])
        rest = dict(zip(("value", "attn_mask", "dropout_p", "is_causal"), args[2:], strict=False))
        return func(**(named | rest))


def _multi_head(  # noqa: PLR0913  (the names of nn.MultiheadAttention's forward)
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The output of `nn.MultiheadAttention` with normalized queries and keys."""
    batched, leading = query.dim() == 3, module.batch_first
    packed = _project(module, query, key, value)
    if not batched:
        packed = [each.unsqueeze(0) for each in packed]
    elif not leading:
        packed = [each.transpose(0, 1) for each in packed]
    heads = [each.reshape(*each.shape[:2], module.num_heads, -1).transpose(1, 2) for each in packed]
    q, k, v = getattr(module, QUERY)(heads[0]), getattr(module, KEY)(heads[1]), heads[2]
    mask = _mask(attn_mask, key_padding_mask, q, module.num_heads)
    dropout = module.dropout if module.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, mask, dropout).transpose(1, 2).flatten(-2)
    y = F.linear(y, module.out_proj.weight, module.out_proj.bias)
    weights = _weights(q, k, mask, average=average_attn_weights) if need_weights else None
    if not batched:
        return y.squeeze(0), None if weights is None else weights.squeeze(0)
    return y if leading else y.transpose(0, 1), weights


def _project(module: nn.MultiheadAttention, *inputs: Tensor) -> list[Tensor]:
    """Queries, keys and values; one product if they come from the same tensor by one packed matrix."""
    bias = module.in_proj_bias
    if module.in_proj_weight is not None and inputs[0] is inputs[1] is inputs[2]:
        return list(F.linear(inputs[0], module.in_proj_weight, bias).chunk(3, -1))
    if module.in_proj_weight is not None:
        weights = list(module.in_proj_weight.chunk(3))
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = [None] * 3 if bias is None else list(bias.chunk(3))
    return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _mask(mask: Tensor | None, padding: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """Both masks as one to add to the logits (batch, heads, queries, keys); True means hidden, as in torch."""
    parts = []
    if mask is not None:
        mask = _additive(mask, query.dtype)
        parts.append(mask.view(-1, heads, *mask.shape[1:]) if mask.dim() == 3 else mask)
    if padding is not None:
        padding = _additive(padding, query.dtype)
        parts.append(padding.view(-1, 1, 1, padding.shape[-1]))
    return sum(parts[1:], parts[0]) if parts else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, *, average: bool) -> Tensor:
    logits = query @ key.transpose(-2, -1) * float(query.shape[-1] ** -0.5)
    weights: Tensor = (logits if mask is None else logits + mask).softmax(-1)
    return weights.mean(1) if average else weights
