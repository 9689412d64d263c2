"""The benchmark of reported bugs: its programs, its truth, and how answers are read and counted."""

import ast

import pytest

from benchmarks.field import __main__ as field
from benchmarks.field import page
from benchmarks.field.bugs import BUGS, GUESSES, is_held_out
from benchmarks.field.runs import PROGRAMS, alarms_of, causes_of
from leadline.checks._select import all_checks

SAID = """leadline: error at step 6: T816 stale-gradients (the gradients): 4 steps added up. Call zero_grad.
verdict: LEARNS THE WRONG THING
cause: D908 mixed-targets (error)
where: the loss
measured: shapes (50, 1) against (50,)
change: Give both the same shape.
verdict: TRAINS
doubt: D914 forgotten-parameters: decoder.0 is in no optimizer
"""


def bug(key):
    return next(each for each in BUGS if each.key == key)


def answer(text="", verdict="TRAINS"):
    return {"verdicts": [verdict], "findings": causes_of(text), "alarms": alarms_of(text)}


@pytest.mark.parametrize("program", sorted(GUESSES))
def test_each_program_has_a_branch_for_each_of_its_bugs(program):
    tree = ast.parse((PROGRAMS / f"{program}.py").read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {each.name for each in BUGS if each.program == program} <= words


def test_there_are_eighty_bugs_in_twenty_programs_in_two_halves():
    assert len({each.key for each in BUGS}) == len(BUGS) >= 80
    assert {each.program for each in BUGS} == {path.stem for path in PROGRAMS.glob("*.py")} == {*GUESSES}
    assert len(GUESSES) >= 20
    assert 30 <= sum(is_held_out(each.program) for each in BUGS) <= len(BUGS) - 30


def test_every_bug_has_the_address_of_its_report_and_names_checks_that_exist():
    names = {check.name for check in all_checks()}
    for each in BUGS:
        assert each.report.startswith("https://")
        assert {*each.checks} <= names, each.key


def test_all_verdicts_causes_doubts_and_alarms_of_a_run_are_read():
    assert [each["name"] for each in causes_of(SAID)] == ["mixed-targets", "forgotten-parameters"]
    assert causes_of(SAID)[0]["message"] == "shapes (50, 1) against (50,) Give both the same shape."
    assert [(each["name"], each["step"]) for each in alarms_of(SAID)] == [("stale-gradients", 6)]


def test_a_bug_is_named_only_by_one_of_its_checks_and_placed_only_by_one_of_its_words():
    flat, stale = bug("friedman_mlp/target_is_flat"), bug("friedman_mlp/no_zero_grad")
    assert page.naming(flat, answer(SAID))
    assert page.placed(flat, answer(SAID))
    assert not page.placed(flat, answer(SAID.replace("(50", "(7")))
    assert page.placed(stale, answer(SAID))
    assert not page.naming(bug("digits_cnn/softmax_output"), answer(SAID))
    note = answer(SAID.replace("(error)", "(note)"))
    assert not page.naming(flat, note)


def test_a_program_is_noticed_by_its_verdict_or_by_a_warning():
    assert not page.noticed(answer())
    assert page.noticed(answer(verdict="TRAINS POORLY"))
    assert page.noticed(answer(SAID))


def truth(healthy, broken, **more):
    first = {"first_losses": [1.0, *[0.94] * 10]}
    key = "friedman_mlp/no_zero_grad"
    return {
        "truth": {
            "friedman_mlp/healthy": {"metric": healthy, **first},
            key: {"metric": broken, **first, **more},
        }
    }


def test_a_bug_is_harmful_if_it_costs_a_tenth_or_hides_as_much():
    stale = bug("friedman_mlp/no_zero_grad")
    assert page.is_harmful(stale, truth(0.9, 0.5))
    assert page.is_harmful(stale, truth(0.9, 0.88, reported=0.99))
    assert page.is_harmful(stale, truth(0.9, float("nan")))
    assert not page.is_harmful(stale, truth(0.9, 0.88))
    assert page.is_harmful(stale, {"truth": {}}) is None


def test_the_naive_rule_asks_for_a_fall_of_five_percent():
    key = "friedman_mlp/no_zero_grad"
    assert not page.naive_alarm(key, truth(0.9, 0.5))
    assert page.naive_alarm(key, truth(0.9, 0.5, first_losses=[1.0, *[0.96] * 10]))


def test_held_out_cases_are_counted_and_not_shown():
    every = {key: answer(SAID) | {"metric": None} for key in field.all_keys()}
    trained = {key: {"metric": 0.5, "first_losses": [1.0]} for key in every}
    text = page.render({"cases": every, "truth": trained, "machine": {"cpu": "x", "torch": "2"}})
    assert all((f"`{each.key}`" in text) != is_held_out(each.program) for each in BUGS)
    assert "So far" not in text
    some = {key: every[key] for key in list(every)[:40]}
    assert "So far 40 of" in page.render(
        {"cases": some, "truth": trained, "machine": {"cpu": "x", "torch": "2"}}
    )


def test_first_answers_are_kept_once_and_only_if_there_are_all(monkeypatch):
    store = {field.NAME: {"cases": {}}}
    monkeypatch.setattr(field, "load", store.get)
    monkeypatch.setattr(field, "save", store.__setitem__)
    with pytest.raises(SystemExit, match="no answer yet"):
        field.keep_first()
    store[field.NAME] = {"cases": {key: answer() for key in field.all_keys()}}
    field.keep_first()
    assert store[field.NAME]["first"].keys() == {*field.all_keys()}
    with pytest.raises(SystemExit, match="kept already"):
        field.keep_first()
