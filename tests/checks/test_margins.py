"""A margin is used up exactly where its check fires, so that the evidence never contradicts the verdict."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from leadline.checks import model_checks
from leadline.checks._examples import geometric, stack_with_step_size
from leadline.records import Margin, Profile, Rehearsal

CHECKS = {check.code: check for check in model_checks()}
WATCHED = (
    "F101",
    "F102",
    "F104",
    "F106",
    "B201",
    "B202",
    "I308",
    "N702",
    "N703",
    "U502",
    "U509",
    "U521",
    "U522",
    "U523",
)


def margins(profile: Profile) -> tuple[Margin, ...]:
    return tuple(margin for check in model_checks() for margin in check.read_margins(profile))


def used(profile: Profile, code: str) -> list[float | None]:
    return [each.used for each in margins(profile) if each.code == code]


@pytest.mark.parametrize("code", WATCHED)
def test_the_margin_is_used_up_in_the_sick_example_of_its_check(code: str):
    (share,) = used(CHECKS[code].sick, code)
    assert share > 1


@pytest.mark.parametrize("code", WATCHED)
def test_the_margin_is_not_used_up_in_the_healthy_example_of_its_check(code: str):
    assert all(share is None or share <= 1 for share in used(CHECKS[code].healthy, code))


def test_every_margin_names_a_check():
    full = replace(stack_with_step_size(), rehearsal=Rehearsal(losses=(2.3, 1.7)))
    assert {each.code for each in margins(full)} <= CHECKS.keys()
    assert {"U509", "U521"} <= {each.code for each in margins(full)}


def test_a_non_finite_quantity_is_not_a_margin():
    broken = replace(stack_with_step_size(), rehearsal=Rehearsal(losses=(2.3, math.nan)))
    assert "U509" not in {each.code for each in margins(broken)}


def test_the_used_share_is_measured_toward_the_limit_from_either_side():
    assert Margin(code="X", quantity="", value=2.0, limit=8.0).used == 0.25
    assert Margin(code="X", quantity="", value=8.0, limit=2.0, side="above").used == 0.25
    assert Margin(code="X", quantity="", value=-1.0, limit=2.0).used is None


def test_a_gradient_of_constant_size_uses_nothing_of_its_margin():
    (share,) = used(geometric(blocks=16), "B201")
    assert share == 0
