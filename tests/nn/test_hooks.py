"""Hooks that change a module's input or output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline.errors import InputError
from leadline.nn.hooks import NormedInput, Recentred, on_first


def test_a_norm_hook_refuses_an_input_that_is_not_floating_point():
    module = nn.Identity()
    module.norm = nn.LayerNorm(4)
    with pytest.raises(InputError, match="floating-point tensor"):
        NormedInput("norm")(module, (torch.arange(4),), {})


def test_an_output_that_does_not_start_with_a_tensor_is_refused():
    with pytest.raises(InputError, match="a tuple that starts with one"):
        on_first({"states": torch.ones(2)}, lambda y: y)


def test_recentering_changes_only_the_first_output():
    first, second = Recentred()(nn.Identity(), (), (torch.tensor([[1.0, 3.0]]), "state"))
    assert first.tolist() == [[-1.0, 1.0]]
    assert second == "state"
