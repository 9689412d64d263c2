"""The benchmark of the policy: its scripts, its truth, and a page that states no share before all is measured."""

import ast

import pytest

from benchmarks.agent_policy import __main__ as page
from benchmarks.agent_policy.bugs import BUGS, GUESSES, PROGRAMS
from benchmarks.agent_policy.policy import keys_of


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.key)
def test_a_mistake_changes_its_script_and_leaves_it_python(bug):
    healthy = (PROGRAMS / f"{bug.program}.py").read_text()
    assert bug.source() != healthy
    ast.parse(bug.source())


def test_there_are_thirty_scripts_of_every_program_in_two_halves():
    assert len({bug.key for bug in BUGS}) == len(BUGS) >= 30
    assert {bug.program for bug in BUGS} == {path.stem for path in PROGRAMS.glob("*.py")} == {*GUESSES}
    assert 10 <= sum(bug.is_held_out for bug in BUGS) <= len(BUGS) - 10


def results(followed, amount):
    twins = {f"{name}/healthy": {"untouched": 1.0} for name in GUESSES}
    case = {"untouched": 0.0, "followed": followed, "applied": True, "cause": "U501 step-too-long (error)"}
    return {"cases": twins | {bug.key: case for bug in BUGS[:amount]}, "machine": {"cpu": "x", "torch": "2"}}


def test_a_script_is_right_if_it_comes_near_its_healthy_twin():
    found = results(0.95, len(BUGS))
    assert page.is_right(0.95, "digits", found)
    assert not page.is_right(0.8, "digits", found)
    assert not page.is_right(None, "digits", found)
    assert page.shares(BUGS, found) == (len(BUGS), 0, len(BUGS))


def test_no_share_is_stated_before_every_script_has_a_result():
    assert f"So far 3 of {len(BUGS)} scripts" in page.render(results(1.0, 3))
    assert "right after the policy" in page.render(results(1.0, len(BUGS)))


def test_the_first_of_several_causes_is_read():
    assert keys_of("verdict: TRAINS\ncause: A\ncause: B\n") == {"verdict": "TRAINS", "cause": "A"}
