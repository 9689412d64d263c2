"""A thousand layers, traced and read: what fast tests show at depth 8 holds at depth 1000."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline import Trace
from leadline.nn import LanguageModel
from leadline.readings.profile import read_profile

pytestmark = pytest.mark.slow
DEPTH = 1000


def test_torchs_own_encoder_of_a_thousand_layers_is_two_thousand_residual_blocks_and_survives_json():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
    found = leadline.trace(model, torch.randn(2, 4, 16), loss=lambda y: (y - 1).square().mean())
    blocks = read_profile(found)[0].blocks
    assert [block.residual.placement for block in blocks if block.residual] == ["pre"] * 2 * DEPTH
    assert len({block.name for block in blocks}) == len(blocks)
    assert Trace.from_json(found.to_json()) == found


@pytest.mark.parametrize(("scheme", "verdict"), [("residual-linear", "trains"), ("none", "fails")])
def test_a_scaled_language_model_of_a_thousand_blocks_is_distinguished_from_a_plain_one(
    scheme: str, verdict: str
):
    torch.manual_seed(0)
    model = LanguageModel(vocab=20, width=16, heads=2, depth=DEPTH, scheme=scheme, max_len=8)
    ids = torch.randint(0, 20, (2, 9))
    report = leadline.check(
        model, ids[:, :-1], ids[:, 1:], lambda out, ids: F.cross_entropy(out.flatten(0, 1), ids.flatten())
    )
    assert report.verdict == verdict
