"""Applying a recipe and undoing it: all or nothing, once, in turn, and bit for bit."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch
from torch import nn

import leadline
from leadline.errors import InputError, SchemaError
from leadline.fixes._engine.repair import repair
from leadline.records import Edit, Recipe
from tests.support import toy_fixes as toys

pytestmark = pytest.mark.long


def recipe(*edits: Edit, model: str = "Sequential") -> Recipe:
    return Recipe(leadline="0.1.0", model=model, edits=edits)


HALF = recipe(
    Edit(action="scale", where="0.weight", options={"factor": 1 / 3}),
    Edit(action="rate", options={"factor": 0.1}),
)
THIRD = recipe(Edit(action="scale", where="0.weight", options={"factor": 1 / 7}))


def pair():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_undo_restores_model_and_optimizer_bit_for_bit():
    model, sgd = pair()
    before = model[0].weight.clone()
    assert leadline.apply(model, HALF, sgd) is model
    assert torch.equal(model[0].weight, before * (1 / 3))
    assert sgd.param_groups[0]["lr"] == pytest.approx(0.01)
    leadline.undo(model)
    assert torch.equal(model[0].weight, before)
    assert sgd.param_groups[0]["lr"] == 0.1


def test_applying_twice_is_applying_once():
    model, sgd = pair()
    before = model[0].weight.clone()
    leadline.apply(model, HALF, sgd)
    leadline.apply(model, Recipe.from_json(HALF.to_json()), sgd)
    assert torch.equal(model[0].weight, before * (1 / 3))
    leadline.undo(model)
    assert torch.equal(model[0].weight, before)


def test_recipes_are_undone_in_turn_the_last_one_first():
    model, sgd = pair()
    before = model[0].weight.clone()
    leadline.apply(model, HALF, sgd)
    between = model[0].weight.clone()
    leadline.apply(model, THIRD)
    leadline.undo(model)
    assert torch.equal(model[0].weight, between)
    leadline.undo(model)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(InputError, match="to which a recipe was applied"):
        leadline.undo(model)


def test_a_recipe_is_made_as_a_whole_or_not_at_all():
    model, _ = pair()
    before = model[0].weight.clone()
    with pytest.raises(InputError, match="optimizer"):
        leadline.apply(model, HALF)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(InputError, match="to which a recipe was applied"):
        leadline.undo(model)


def test_a_recipe_for_another_model_is_refused():
    with pytest.raises(InputError, match=r"a ResNet, because"):
        leadline.apply(pair()[0], recipe(model="ResNet"))


@pytest.mark.parametrize("given", [THIRD.to_json(), json.loads(THIRD.to_json())], ids=["text", "loaded"])
def test_a_recipe_may_be_its_json(given):
    model, _ = pair()
    before = model[0].weight.clone()
    leadline.apply(model, given)
    assert torch.equal(model[0].weight, before * (1 / 7))


@pytest.mark.parametrize("given", [None, 3, [THIRD]], ids=["nothing", "number", "list"])
def test_what_is_no_recipe_is_refused(given):
    with pytest.raises(InputError, match="expected a recipe"):
        leadline.apply(pair()[0], given)


def test_a_recipe_can_be_read_from_its_file(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(THIRD.to_json())
    model, _ = pair()
    before = model[0].weight.clone()
    leadline.apply(model, path)
    assert torch.equal(model[0].weight, before * (1 / 7))
    path.write_text("{}")
    with pytest.raises(SchemaError, match=r"leadline\.recipe/1"):
        leadline.apply(model, str(path))
    with pytest.raises(InputError, match="No such file"):
        leadline.apply(model, tmp_path / "nowhere.json")


def test_a_model_that_is_no_longer_used_is_not_kept_alive_by_what_was_applied_to_it():
    model, sgd = pair()
    leadline.apply(model, HALF, sgd)
    gone = weakref.ref(model)
    del model, sgd
    gc.collect()
    assert gone() is None


def test_fix_applies_exactly_the_recipe_and_only_on_request():
    case = toys.deep()
    state = {name: value.clone() for name, value in case.model.state_dict().items()}
    found = repair(case, fixes=[toys.toy_gain], apply=True)
    assert found.model is case.model
    assert found.optimizer is case.optimizer
    other = toys.deep()
    leadline.apply(other.model, found.recipe, other.optimizer)
    for name, value in case.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name])
    leadline.undo(case.model)
    assert all(torch.equal(value, state[name]) for name, value in case.model.state_dict().items())


def test_a_compiled_model_gets_the_recipe_in_the_model_inside():
    model, _ = pair()
    before = model[0].weight.clone()
    wrapped = nn.DataParallel(model)
    leadline.apply(wrapped, THIRD)
    assert torch.equal(model[0].weight, before * (1 / 7))
    leadline.undo(model)
    assert torch.equal(model[0].weight, before)


def test_an_optimizer_can_be_saved_after_its_repair_was_undone():
    model, _ = pair()
    model[0].bias.requires_grad = False
    adam = torch.optim.Adam([model[0].weight, *model[2].parameters()])
    leadline.apply(model, recipe(Edit(action="train", options={"names": ("0.bias",)})), adam)
    model(torch.randn(3, 4)).sum().backward()
    adam.step()
    leadline.undo(model)
    assert len(adam.state_dict()["state"]) == 3
