"""What is measured of a fused attention is what its weights, written out, have."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from leadline.tracer.attention import (
    MAX_BATCH_SIZE,
    MAX_QUERY_ROWS,
    AttentionBatches,
    attention_logits,
    fetch_attention,
    summarize,
)

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
    (found,) = fetch_attention(summarize(attention_logits(q, k, v, **given)[None]))
    weights = written_out(q, k, mask).softmax(-1)[..., -MAX_QUERY_ROWS:, :]
    assert found.keys == 9
    assert found.purity == pytest.approx(weights.square().sum(-1).mean().item(), rel=1e-5)
    assert found.entropy == pytest.approx(-torch.xlogy(weights, weights).sum(-1).mean().item(), rel=1e-5)


def test_grouped_queries_are_measured_against_their_own_keys():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    (found,) = fetch_attention(summarize(attention_logits(q, k, v, enable_gqa=True)[None]))
    weights = written_out(q, k.repeat_interleave(2, 1)).softmax(-1)[..., -MAX_QUERY_ROWS:, :]
    assert found.purity == pytest.approx(weights.square().sum(-1).mean().item(), rel=1e-5)


def test_attentions_that_are_measured_together_have_what_each_has_alone():
    torch.manual_seed(0)
    logits = 3 * torch.randn(5, 2, 3, 4, 9)
    logits[1, ..., 5:] = -math.inf
    logits[2, 0, 1, 3] = -math.inf
    logits[3, 1, 0, 2, 4] = -1e4
    together = fetch_attention(summarize(logits))
    alone = [fetch_attention(summarize(each[None]))[0] for each in logits]
    assert [each.slice_logits for each in together] == [each.slice_logits for each in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.slice_purities == pytest.approx(other.slice_purities, rel=1e-5)
        for name in ("purity", "entropy", "logit_var", "logit_max"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-5)


class Wrapped(torch.Tensor):
    """A tensor of another class that behaves like any."""


class Refuses(torch.Tensor):
    """A tensor that cannot be reduced."""

    def softmax(self, dim):
        raise NotImplementedError


def measured_in_batches(*logits) -> list[SimpleNamespace]:
    batches, entries = AttentionBatches(), [SimpleNamespace(attended=None) for _ in logits]
    for entry, each in zip(entries, logits, strict=True):
        batches.add(entry, each)
    batches.measure()
    return entries


def test_attentions_wait_until_their_batch_is_full():
    logits = torch.randn(2, 3, 4, 9)
    batches, entry = AttentionBatches(), SimpleNamespace(attended=None)
    for _ in range(MAX_BATCH_SIZE // logits.numel()):
        batches.add(entry, logits)
    assert entry.attended is None
    batches.add(entry, logits)
    assert entry.attended is not None


def test_attentions_of_several_shapes_each_have_what_they_have_alone():
    logits = [torch.randn(2, 3, 4, 9), torch.randn(2, 3, 4, 7), torch.randn(2, 3, 4, 9)]
    entries = measured_in_batches(*logits, None)
    assert entries[-1].attended is None
    for entry, each in zip(entries, logits, strict=False):
        found, alone = fetch_attention([entry.attended, summarize(each[None])[0]])
        assert found.purity == pytest.approx(alone.purity, rel=1e-5)
        assert found.slice_logits == alone.slice_logits


def test_a_tensor_of_another_class_is_measured_alone_or_not_at_all():
    logits = torch.randn(2, 3, 4, 9)
    plain, other, refusing = measured_in_batches(
        logits, logits.as_subclass(Wrapped), logits.as_subclass(Refuses)
    )
    (one, two) = fetch_attention([plain.attended, other.attended])
    assert float(two.purity) == pytest.approx(one.purity, rel=1e-5)
    assert refusing.attended is None


def test_logits_with_more_axes_than_heads_are_measured_without_slices():
    (found,) = fetch_attention(summarize(torch.randn(1, 2, 3, 2, 4, 9)))
    assert found.slice_logits == found.slice_purities == ()
    assert 1 / 9 < found.purity < 1


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
