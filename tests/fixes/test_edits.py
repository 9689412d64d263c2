"""Edits can be made, read as code, and taken back bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import EditSession, apply_edits, code_of, temporary_edits
from leadline.records import Edit, Recipe

SCALED = Edit(action="scale", where="0.weight", options={"factor": 0.5})
SLOWER = Edit(action="rate", options={"factor": 0.1})


def edit_session() -> EditSession:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return EditSession(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_an_edit_changes_what_it_names_and_is_taken_back_bit_for_bit() -> None:
    session = edit_session()
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    with temporary_edits(session, [SCALED, SLOWER]):
        assert torch.equal(session.model.get_parameter("0.weight"), before["0.weight"] * 0.5)
        assert session.optimizer is not None
        assert session.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert session.optimizer.param_groups[0]["lr"] == 0.1
    assert all(torch.equal(value, before[name]) for name, value in session.model.state_dict().items())


def test_if_one_edit_cannot_be_made_those_before_it_are_taken_back() -> None:
    session = edit_session()
    before = session.model.get_parameter("0.weight").clone()
    with pytest.raises(InputError, match=r"a parameter named 'nowhere\.weight'"):
        apply_edits(session, [SCALED, Edit(action="scale", where="nowhere.weight", options={"factor": 2.0})])
    assert torch.equal(session.model.get_parameter("0.weight"), before)


def test_an_unknown_action_is_named() -> None:
    with pytest.raises(InputError, match="the action 'bless'"):
        apply_edits(edit_session(), [Edit(action="bless")])


def test_the_code_of_edits_does_the_same() -> None:
    session, by_hand = edit_session(), edit_session()
    by_hand.model.load_state_dict(session.model.state_dict())
    apply_edits(session, [SCALED, SLOWER])
    exec(code_of([SCALED, SLOWER]), {"model": by_hand.model, "optimizer": by_hand.optimizer, "torch": torch})
    for name, value in session.model.state_dict().items():
        assert torch.equal(value, by_hand.model.state_dict()[name])
    assert session.optimizer is not None
    assert by_hand.optimizer is not None
    assert session.optimizer.param_groups[0]["lr"] == by_hand.optimizer.param_groups[0]["lr"]


def test_a_replaced_module_keeps_its_place_and_comes_back() -> None:
    session = edit_session()
    names = [name for name, _ in session.model.named_children()]
    old = session.model[1]  # type: ignore[index]
    session.replace_module(old, nn.Tanh())
    assert [name for name, _ in session.model.named_children()] == names
    assert isinstance(session.model[1], nn.Tanh)  # type: ignore[index]
    session.undo()
    assert session.model[1] is old  # type: ignore[index]


def test_a_recipe_survives_json() -> None:
    recipe = Recipe(leadline="0.1.0", model="Sequential", edits=(SCALED, SLOWER))
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_edits_that_differ_in_their_place_only_become_a_loop_that_does_the_same() -> None:
    session, by_hand = edit_session(), edit_session()
    by_hand.model.load_state_dict(session.model.state_dict())
    both = [Edit(action="scale", where=name, options={"factor": 0.5}) for name in ("0.weight", "2.weight")]
    code = code_of([*both, SLOWER])
    assert code.count("mul_") == 1
    apply_edits(session, both)
    exec(code, {"model": by_hand.model, "optimizer": by_hand.optimizer})
    for name, value in session.model.state_dict().items():
        assert torch.equal(value, by_hand.model.state_dict()[name])


def test_names_of_any_characters_are_looped_over_and_found_again() -> None:
    odd = 'we"ird\n{x}\\😀'

    def model() -> nn.Module:
        whole = nn.Module()
        whole.add_module(odd, nn.Sequential(*[nn.Linear(2, 2) for _ in range(3)]))
        torch.manual_seed(0)
        for parameter in whole.parameters():
            nn.init.normal_(parameter)
        return whole

    edits = [
        Edit(action="draw", where=f"{odd}.{i}.weight", options={"kind": "normal", "size": 0.5})
        for i in range(3)
    ]
    code = code_of(edits)
    assert "for i in range(3):" in code
    treated, by_hand = model(), model()
    apply_edits(EditSession(model=treated), edits)
    exec(code, {"model": by_hand})
    for name, value in treated.state_dict().items():
        assert torch.equal(value, by_hand.state_dict()[name])


def adam_session() -> EditSession:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return EditSession(model=model, optimizer=torch.optim.Adam(model.parameters(), betas=(0.8, 0.9)))


@pytest.mark.parametrize(
    ("options", "betas", "eps"),
    [({"beta1": 0.5, "beta2": 0.6}, (0.5, 0.6), 1e-8), ({"eps": 1e-3}, (0.8, 0.9), 1e-3)],
    ids=["betas", "eps"],
)
def test_options_change_what_they_name_and_nothing_else(options, betas, eps) -> None:
    session = adam_session()
    with temporary_edits(session, [Edit(action="options", options=options)]):
        (group,) = session.optimizer.param_groups
        assert (group["betas"], group["eps"]) == (betas, eps)
    assert session.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
