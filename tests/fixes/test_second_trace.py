"""The second trace objects to a fix only by what it can measure; what a rehearsal found is left to the trial."""

from __future__ import annotations

from dataclasses import replace

from leadline.checks._diagnosis import check_case
from leadline.fixes._engine.proofs import rate_candidate
from leadline.fixes._engine.verify import make_context, trace_again, with_rehearsal
from leadline.records import Rehearsal
from tests.support import toy_fixes as toys

RISING = Rehearsal(losses=(1.4, *[2.8] * 16), constant=1.386)


def serious_codes(report) -> set[str]:
    return {each.code for each in report.findings if each.severity != "info"}


def test_a_fix_of_what_only_training_shows_is_open_after_the_second_trace():
    case = toys.healthy()
    traced = check_case(case, rehearse=False)
    trained = with_rehearsal(traced, RISING)
    shown = serious_codes(trained) - serious_codes(traced)
    assert shown
    proof = trace_again(make_context(case, trained), replace(rate_candidate(0.1), answers=tuple(shown)))
    assert proof.open
    assert proof.doubt == ""
    assert not shown & {*proof.outcome.gone}  # that is for the trial to say


def test_a_fix_that_leaves_what_the_trace_shows_is_doubted_though_training_shows_more():
    case = toys.deep()
    traced = check_case(case, rehearse=False)
    trained = with_rehearsal(traced, RISING)
    shown = serious_codes(traced)
    assert shown
    proof = trace_again(make_context(case, trained), replace(rate_candidate(0.1), answers=tuple(shown)))
    assert "still finds" in proof.doubt + proof.outcome.why
