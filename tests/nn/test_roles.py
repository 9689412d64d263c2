"""The role of each weight in its block."""

from __future__ import annotations

import pytest
from torch import nn

from leadline.nn.mlp import PlainLayer
from leadline.nn.roles import role_weights


@pytest.mark.parametrize("kind", ["kdim", "packed"])
def test_torch_attention_has_four_roles_with_packed_and_with_separate_weights(kind: str):
    attention = nn.MultiheadAttention(8, 2, **({"kdim": 6, "vdim": 6} if kind == "kdim" else {}))
    assert [each.role for each in role_weights(attention)] == ["query", "key", "value", "output"]


def test_the_weight_of_a_plain_layer_is_fc1():
    assert [each.role for each in PlainLayer(4, "relu").role_weights()] == ["fc1"]
