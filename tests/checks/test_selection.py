"""Which checks count: beginnings of codes and names, the more exact entry first, and no silent misspelling."""

import pytest

from leadline.checks import model_checks, run_checks
from leadline.checks._select import find_check, unselected_codes
from leadline.errors import InputError, RuleError

CODES = {check.code for check in model_checks()}


def kept(select=(), ignore=()):
    return CODES - unselected_codes(select, ignore)


def beginning(*prefixes):
    return {code for code in CODES if code.startswith(prefixes)}


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), CODES),
        (("F", "B"), (), beginning("F", "B")),
        ((), ("F",), CODES - beginning("F")),
        (("B",), ("B201",), beginning("B") - {"B201"}),
        (("B201",), ("B",), {"B201"}),
        (("B201",), ("B201",), set()),
        (("gradient-decay",), (), {"B201"}),
        (("b201", " n "), (), {"B201"} | beginning("N")),
    ],
)
def test_the_more_exact_entry_wins(select, ignore, expected):
    assert kept(select, ignore) == expected


@pytest.mark.parametrize("check", model_checks(), ids=lambda check: check.code)
def test_every_check_can_be_chosen_alone_by_code_and_by_name(check):
    assert kept([check.code]) == kept([check.name]) == {check.code}
    assert kept(ignore=[check.name.upper()]) == CODES - {check.code}
    assert find_check(check.code.lower()) is check


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("B2O1", "did you mean B201"),
        ("gradient-decai", "gradient-decay"),
        ("", "leadline rules"),
        ("Q", "'Q'"),
    ],
)
def test_an_entry_that_matches_no_check_is_an_error(entry, words):
    with pytest.raises(InputError, match=words):
        unselected_codes([entry], [])
    with pytest.raises(InputError, match=words):
        unselected_codes([], [entry])


@pytest.mark.parametrize("collected", [model_checks, run_checks], ids=["model checks", "run checks"])
def test_two_checks_of_one_code_are_an_error(monkeypatch: pytest.MonkeyPatch, collected):
    first = collected()[0]
    collected.cache_clear()
    monkeypatch.setattr("leadline.checks._select.collect", lambda *_: [first, first])
    with pytest.raises(RuleError, match="two checks have the code"):
        collected()
    monkeypatch.undo()
    collected.cache_clear()
    assert first in collected()
