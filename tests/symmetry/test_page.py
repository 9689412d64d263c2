"""The page on symmetries: its code runs, and what it says of it is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "symmetry.md"


def test_the_code_on_the_page_runs_and_does_what_it_says():
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    found, model, tiny, least = (names[each] for each in ("found", "model", "tiny", "least"))
    assert found.dimension == 2
    assert found.inert == ("0.weight", "0.bias")
    torch.testing.assert_close(tiny[0].weight, 0.5 * model[0].weight)
    assert torch.equal(tiny[3].weight, model[3].weight)
    assert torch.equal(least[0].weight, model[0].weight)
    torch.testing.assert_close(least[1].weight.norm(), least[3].weight.norm(), rtol=1e-3, atol=0)
