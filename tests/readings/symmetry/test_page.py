"""The page on symmetries: its code runs, and what it says of it is so."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

from benchmarks.result_files import load
from benchmarks.symmetry_figures import FIGURES, FOLDER, change_after_norm, change_in_stream, draw
from tests.support import ROOT

PAGE = ROOT / "docs" / "explanation" / "symmetry.md"


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


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_what_the_stored_results_draw(figure: str):
    results = load("symmetry_figures")
    on_disk = (FOLDER / f"{figure}.svg").read_text()
    assert draw(results, figure) == on_disk
    assert f"(../images/{figure}.svg)" in PAGE.read_text()
    changed = copy.deepcopy(results)
    changed["cases"][next(iter(FIGURES[figure]))][9][1] *= 2
    assert draw(changed, figure) != on_disk


MEASURED_AGAIN = {
    "norm eps=1e-12": lambda: change_after_norm(1e-12),
    "norm eps=1e-05": lambda: change_after_norm(1e-5),
    "one branch": lambda: change_in_stream("down.1"),
}


@pytest.mark.parametrize("case", MEASURED_AGAIN)
def test_the_stored_results_are_what_is_measured(case: str):
    again, stored = (
        torch.tensor(each) for each in (MEASURED_AGAIN[case](), load("symmetry_figures")["cases"][case])
    )
    torch.testing.assert_close(again, stored, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("case", ["norm eps=0", "all writers"])
def test_a_free_rescaling_changes_outputs_only_by_rounding(case: str):
    again = change_after_norm(0.0) if case == "norm eps=0" else change_in_stream("embed", "down")
    changes = [change for pairs in (again, load("symmetry_figures")["cases"][case]) for _, change in pairs]
    assert max(changes) < 1e-14
