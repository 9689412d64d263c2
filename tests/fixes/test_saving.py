"""Repaired weights and a recipe are all that is needed to have the repaired model again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import leadline
from leadline.case import Case
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.records import Recipe
from tests.fixes.test_laws import outputs, proposals
from tests.support import ROOT
from tests.support.fix_examples import sick

pytestmark = pytest.mark.long

INSERTING = ["qk-norm", "keel", "peri-norm", "pre-norm", "insert-norm", "add-skips"]


def trained(name: str, folder: Path) -> torch.Tensor:
    """The sick model, repaired and trained for a step; its weights, recipe and outputs are left in the folder."""
    case, plan = sick(name), next(plan for plan in proposals(name) if plan.edits)
    apply_edits(EditSession(model=case.model, optimizer=case.optimizer), plan.edits)
    assert case.loss is not None
    assert case.optimizer is not None
    case.loss(case.model(case.inputs), case.targets).backward()
    case.optimizer.step()
    recipe = Recipe(leadline="0", model=type(case.model).__qualname__, edits=plan.edits)
    (folder / f"{name}.json").write_text(recipe.to_json())
    state = {key: value.clone().contiguous() for key, value in case.model.state_dict().items()}
    save_file(state, folder / f"{name}.safetensors")
    return outputs(case)


def loaded(name: str, folder: Path) -> torch.Tensor:
    """The same from the files alone, on a model that has not been repaired."""
    case = sick(name)
    leadline.apply(case.model, folder / f"{name}.json", case.optimizer)
    case.model.load_state_dict(load_file(folder / f"{name}.safetensors"), strict=True)
    return outputs(Case(case.model, case.inputs))


@pytest.mark.parametrize("name", INSERTING)
def test_weights_and_recipe_give_the_repaired_model_again(name, tmp_path):
    expected = trained(name, tmp_path)
    assert torch.equal(loaded(name, tmp_path), expected)


FRESH = """
import sys
from pathlib import Path
import torch
from tests.fixes.test_saving import INSERTING, loaded
folder = Path(sys.argv[1])
torch.save({name: loaded(name, folder) for name in INSERTING}, folder / "outputs.pt")
"""


@pytest.mark.slow
def test_they_do_so_in_a_process_that_knows_nothing_else(tmp_path):
    expected = {name: trained(name, tmp_path) for name in INSERTING}
    root = ROOT
    subprocess.run([sys.executable, "-c", FRESH, str(tmp_path)], check=True, cwd=root, timeout=300)
    found = torch.load(tmp_path / "outputs.pt", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
