"""Every moment rule agrees with samples of its op: second moments forward and backward, in standard errors."""

from __future__ import annotations

import math

import pytest

from leadline.ops.table import NEUTRAL, OP_TABLE
from leadline.readings.theory import moments
from leadline.readings.theory.moment_rule import MomentRule
from tests.support.theory_bench import Comparison, compare
from tests.support.theory_samples import CASES, REFUSED, WITHOUT
from tests.support.theory_samples.case import RESOLUTION, SIGMAS, Case

RULED = {name for row in OP_TABLE if row.moment_rule not in (None, NEUTRAL) for name in row.names}


def op_of(title: str) -> str:
    """A title is the op's name, and for a second case of it some more words."""
    return title.split()[0]


def error_of(pair: tuple[float, float]) -> float:
    """The logarithm of predicted over measured; none where both are nothing."""
    predicted, measured = pair
    if predicted == 0 and measured == 0:
        return 0.0
    return math.log(predicted / measured) if predicted > 0 < measured else math.inf


def agrees(case: Case, pairs: list[tuple[float, float]], *, wrong_by: float = 1.0) -> bool:
    errors = [error_of(pair) + math.log(wrong_by) for pair in pairs]
    return abs(sum(errors)) / len(errors) <= SIGMAS * case.standard_error(errors) + case.beyond


def sides(case: Case, found: list[Comparison]) -> list[list[tuple[float, float]]]:
    forward = [each.forward for each in found]
    return [forward, [each.backward for each in found]] if case.gradient else [forward]


@pytest.mark.parametrize("title", CASES)
def test_a_rule_agrees_with_samples_of_its_op_to_three_percent(title: str):
    case, name = CASES[title], op_of(title)
    found = [compare(case.function, *case.operands(draw), draw=draw) for draw in range(case.draws)]
    assert found[0].refusals == {}
    assert name in found[0].recorded
    assert case.within or found[0].judged == name
    for pairs in sides(case, found):
        assert agrees(case, pairs)
        assert SIGMAS * case.standard_error([error_of(pair) for pair in pairs]) < RESOLUTION


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_refuses_uncovered_calls_with_a_reason(name: str):
    found = compare(REFUSED[name], *Case(REFUSED[name]).operands())
    said = [reason for reason in found.refusals.values() if not reason.startswith("unexpected")]
    assert name in found.recorded
    assert said
    assert len(said) == len(found.refusals)


def test_every_rule_has_a_sample_a_refusal_or_a_reason_for_neither():
    sampled = {op_of(title) for title in CASES}
    assert sorted(RULED - sampled - REFUSED.keys() - WITHOUT.keys()) == []


def test_no_reason_is_given_for_a_rule_that_has_a_sample_or_does_not_exist():
    excused = REFUSED.keys() | WITHOUT.keys()
    assert sorted(excused & {op_of(title) for title in CASES}) == []
    assert sorted(excused - RULED) == []


@pytest.mark.parametrize("title", ["gelu", "linear", "layer_norm", "cross_entropy", "mul"])
@pytest.mark.parametrize("wrong_by", [1.03, 1 / 1.03])
def test_a_rule_wrong_by_three_percent_is_caught(title: str, wrong_by: float):
    case = CASES[title]
    found = [compare(case.function, *case.operands(draw), draw=draw) for draw in range(max(case.draws, 1))]
    for pairs in sides(case, found):
        assert agrees(case, pairs)
        assert not agrees(case, pairs, wrong_by=wrong_by)


def test_two_rules_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch):
    rule = MomentRule(name="linear", apply=lambda call: None, assumes="")  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(moments, "collect", lambda package, kind: (rule, rule))
    moments.moment_rules.cache_clear()
    with pytest.raises(ValueError, match="linear"):
        moments.moment_rules()
    moments.moment_rules.cache_clear()
