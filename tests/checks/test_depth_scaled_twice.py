"""I306 on real networks: each scaling alone is fine, the two together are named."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import leadline
from leadline.nn import LanguageModel, Options

BLOCKS = 12


def codes(scheme: str, *, scaled: bool) -> set[str]:
    torch.manual_seed(0)
    model = LanguageModel(50, 32, 4, BLOCKS, scheme=scheme, max_len=16, options=Options(positions="learned"))
    if scaled:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("output.weight", "fc2.weight")):
                    weight.div_(math.sqrt(2 * BLOCKS))
    tokens = torch.randint(50, (4, 16))
    report = leadline.check(model, tokens, tokens, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("scheme", ["layernorm-scaling", "residual-sqrt"])
def test_a_scheme_that_scales_with_depth_and_a_scaled_init_are_reported_together(scheme: str):
    assert "I306" in codes(scheme, scaled=True)
    assert "I306" not in codes(scheme, scaled=False)


def test_scaled_init_alone_is_not_reported_as_scaled_twice():
    found = codes("gpt2-init", scaled=False)
    assert "I306" not in found
    assert "R406" in found
