"""Where the logits are made: the head may be a layer, or a table that embeds as well."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.fixes._engine.verify import make_context
from leadline.fixes.scaled_head import scaled_head

WORDS, WIDTH = 20, 16


class Tied(nn.Module):
    def __init__(self, *, by_view: bool) -> None:
        super().__init__()
        self.embed, self.by_view = nn.Embedding(WORDS, WIDTH), by_view
        self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = self.norm(x + self.inner(x).relu()) * 3
        logits = x @ self.embed.weight.T if self.by_view else F.linear(x, self.embed.weight)
        return logits.flatten(0, 1)


@pytest.mark.parametrize("by_view", [True, False], ids=["x @ table.T", "linear"])
def test_the_head_that_is_scaled_is_the_one_that_makes_the_logits(by_view):
    torch.manual_seed(0)
    model, tokens = Tied(by_view=by_view), torch.randint(0, WORDS, (8, 10))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    case = Case(model, tokens, tokens.roll(1, 1).flatten(), F.cross_entropy, adam)
    (plan,) = scaled_head.propose(make_context(case))
    assert [edit.where for edit in plan.edits] == ["embed.weight"]
    apply_edits(EditSession(model=model), plan.edits)
    assert float(model(tokens).square().mean().detach()) == pytest.approx(1, rel=0.3)
