"""What is measured of a fused attention is what its weights, written out, have."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from leadline.tracer.attention import MAX_QUERY_ROWS, fetch_attention, measure_attention

SHAPE = (2, 3, 9, 8)


def written_out(q, k, mask=None):
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    return logits if mask is None else logits.masked_fill(~mask, -math.inf)


@pytest.mark.parametrize("how", ["plain", "causal", "bool mask", "float mask"])
def test_purity_and_entropy_are_those_of_the_last_rows_written_out(how):
    torch.manual_seed(0)
    q, k, v = (2 * torch.randn(SHAPE) for _ in range(3))
    causal = torch.ones(9, 9).tril().bool()
    mask = causal if how != "plain" else None
    given = {
        "plain": {},
        "causal": {"is_causal": True},
        "bool mask": {"attn_mask": causal},
        "float mask": {"attn_mask": torch.zeros(9, 9).masked_fill(~causal, -math.inf)},
    }[how]
    (found,) = fetch_attention([measure_attention(q, k, v, **given)])
    weights = written_out(q, k, mask).softmax(-1)[..., -MAX_QUERY_ROWS:, :]
    assert found.keys == 9
    assert found.purity == pytest.approx(weights.square().sum(-1).mean().item(), rel=1e-5)
    assert found.entropy == pytest.approx(-torch.xlogy(weights, weights).sum(-1).mean().item(), rel=1e-5)


def test_grouped_queries_are_measured_against_their_own_keys():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    (found,) = fetch_attention([measure_attention(q, k, v, enable_gqa=True)])
    weights = written_out(q, k.repeat_interleave(2, 1)).softmax(-1)[..., -MAX_QUERY_ROWS:, :]
    assert found.purity == pytest.approx(weights.square().sum(-1).mean().item(), rel=1e-5)


def test_the_trace_of_a_fused_attention_carries_it():
    import leadline

    class Attends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v)

    trace = leadline.trace(Attends(), torch.randn(2, 6, 8), loss=lambda y: y.square().mean())
    (attended,) = [value.attended for value in trace.values if value.attended is not None]
    assert 1 / 6 <= attended.purity <= 1
    assert 0 <= attended.entropy <= math.log(6) + 1e-6
