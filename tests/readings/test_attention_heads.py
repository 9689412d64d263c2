"""The largest logit of each head: measured for every form of attention, judged by a check, recorded by a watch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.checks._examples import vector_history
from leadline.checks._history import NOT_MEASURED, RunLayout
from leadline.checks.run.growing_logits import growing_logits
from leadline.nn import LanguageModel
from leadline.nn.schemes import SCHEMES
from leadline.records import Attention
from leadline.records.report import Report
from leadline.tracer.attention import MAX_QUERY_ROWS
from tests.support.wiring import text, token_loss

HEADS, WIDTH, TIME = 4, 32, 12


class OneAttention(nn.Module):
    """Tokens through one attention; `form` says how it is written."""

    def __init__(self, form: str) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.form = form
        self.tokens = nn.Embedding(31, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        self.head = nn.Linear(WIDTH, 31)

    def split(self, tokens: Tensor) -> list[Tensor]:
        packed = F.linear(self.tokens(tokens), self.attention.in_proj_weight)
        return [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in packed.chunk(3, -1)]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.form.startswith("module"):
            return self.head(x + self.attention(x, x, x, need_weights=self.form == "module, weights")[0])
        q, k, v = self.split(tokens)
        if self.form == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            logits = q @ k.mT / math.sqrt(WIDTH // HEADS)
            hidden = torch.ones(len(logits[0, 0]), len(logits[0, 0])).triu(1)
            y = (logits + hidden * float(self.form)).masked_fill(hidden * float(self.form) < -1e5, -math.inf)
            y = y.softmax(-1) @ v
        return self.head(x + y.transpose(1, 2).flatten(-2))


def tokens() -> Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 31, (3, TIME))


def check(model: nn.Module) -> Report:
    x = tokens()
    return leadline.check(model, x, x.roll(-1, 1), token_loss, rehearse=False)


def attentions(report: Report) -> tuple[Attention, ...]:
    assert report.profile.facts is not None
    return report.profile.facts.attentions


def hot_heads(report: Report) -> list[str]:
    return [each.message for each in report.findings if each.code == "F107" and "heads" in each.message]


def visible(logits: Tensor, form: str) -> Tensor:
    hidden = torch.ones(TIME, TIME).triu(1).bool()
    return logits if form.startswith("module") else logits.masked_fill(hidden, 0.0)


@pytest.mark.parametrize("form", ["fused", "-inf", "-1e4", "-1e9", "module", "module, weights"])
def test_the_largest_logit_of_each_head_is_that_of_the_last_queries(form):
    model = OneAttention(form.replace("-inf", "-1e9"))
    (attention,) = attentions(check(model))
    q, k, _ = model.split(tokens())
    rows = visible((q @ k.mT / math.sqrt(WIDTH // HEADS)).detach(), form)[..., -MAX_QUERY_ROWS:, :].abs()
    assert attention.head_logits == pytest.approx(rows.amax((0, 2, 3)).tolist(), rel=1e-5)
    assert attention.logit_max == pytest.approx(max(attention.head_logits))
    assert len(attention.head_purities) == HEADS
    assert attention.logit_var is not None, "masked attention has a variance over the keys that it sees"


def language_model(scheme: str = "pre") -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(vocab=31, width=WIDTH, heads=HEADS, depth=3, scheme=scheme)


def with_hot_head(factor: float) -> LanguageModel:
    model = language_model()
    with torch.no_grad():
        weight = model.get_submodule("stack.blocks.1.attention.branch.qkv").weight
        weight[8:16] *= factor
        weight[40:48] *= factor
    return model


def test_one_hot_head_is_named_with_the_factor_of_qk_clip():
    report = check(with_hot_head(12.0))
    (finding,) = [each for each in report.findings if each.code == "F107"]
    logits = attentions(report)[1].head_logits
    assert finding.severity == "warning"
    assert finding.message.startswith("1 of 12 heads")
    assert "head 1 of stack.blocks.1.attention.branch" in finding.message
    assert f"{math.sqrt(100 / max(logits)):.2g}" in finding.action


def test_the_factor_of_qk_clip_brings_the_logits_to_its_threshold():
    model = with_hot_head(12.0)
    factor = 0.999 * math.sqrt(100 / max(attentions(check(model))[1].head_logits))
    with torch.no_grad():
        weight = model.get_submodule("stack.blocks.1.attention.branch.qkv").weight
        weight[8:16] *= factor
        weight[40:48] *= factor
    report = check(model)
    assert max(attentions(report)[1].head_logits) == pytest.approx(99.8, rel=1e-3)
    assert hot_heads(report) == []


def test_a_bias_that_moves_all_logits_of_a_query_is_not_saturation():
    model = language_model()
    with torch.no_grad():
        for block in range(3):
            qkv = model.get_submodule(f"stack.blocks.{block}.attention.branch.qkv")
            qkv.bias = nn.Parameter(torch.zeros(3 * WIDTH))
            qkv.bias[WIDTH : 2 * WIDTH] = 300.0
    report = check(model)
    assert max(attentions(report)[0].head_logits) > 100
    assert hot_heads(report) == []


def test_attention_over_earlier_layers_is_no_attention_over_keys():
    found = attentions(check(language_model("attention-residuals")))
    assert [each.module.rpartition(".")[2] for each in found] == ["branch"] * 3


@pytest.mark.slow
def test_no_scheme_has_a_hot_head_at_the_start():
    sick = {name for name in SCHEMES if hot_heads(check(language_model(name)))}
    assert sick == set()


def watch_steps(steps: int) -> leadline.Watch:
    model = language_model()
    x, targets = text()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with leadline.watch(model, optimizer, every=1) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            w.loss(token_loss(model(x % 31), targets % 31)).backward()
            optimizer.step()
    return w


def test_a_watch_records_the_largest_logit_of_each_head():
    w = watch_steps(1)
    assert w.history.layout.heads[5] == "stack.blocks.1.attention.branch 1"
    last = w.history.recent("head_logit").rows[-1]
    assert len(last) == len(w.history.layout.heads) == 12
    blocks = [each for each in w.history.recent("attention_logit").rows[-1] if each != NOT_MEASURED]
    assert [max(last[start : start + HEADS]) for start in (0, 4, 8)] == pytest.approx(blocks)
    assert [each for each in w.alerts if each.code == "T808"] == []


def test_the_alert_on_growing_logits_names_the_head_and_the_rule():
    growing = {
        "attention_logit": lambda step: [3.0, 3.0 * math.exp(step / 100)],
        "head_logit": lambda step: [3.0, 2.0, 3.0 * math.exp(step / 100), 1.0],
    }
    layout = RunLayout(blocks=("a", "b"), heads=("a.attn 0", "a.attn 1", "b.attn 0", "b.attn 1"))
    (alert,) = growing_logits(vector_history(420, growing, every=20, layout=layout))
    assert alert.severity == "error"
    assert "in head 0 of b.attn" in alert.message
    assert "sqrt(100 / largest logit)" in alert.action
