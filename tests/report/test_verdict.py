"""The sentence behind the verdict says what decided it, and what was told not to."""

from __future__ import annotations

import torch
from msgspec.structs import replace

import leadline
from leadline.records import Finding
from leadline.records.report import Report
from leadline.report.formats import FORMATS
from leadline.report.look import Look
from leadline.report.pages.report import reproducing_code
from leadline.report.verdict import asked, headline, missing_evidence
from tests.support import reports as samples


def ignoring(*found: Finding) -> Report:
    return replace(samples.report(samples.profile([1.0], [1.0])), ignored=found)


def test_the_headline_says_how_many_findings_were_ignored():
    report = ignoring(samples.finding(code="F101"), samples.finding(code="B201"))
    assert headline(report).endswith("(2 findings ignored: F101, B201)")


def test_an_ignored_note_is_not_worth_a_word_in_the_headline():
    report = ignoring(samples.finding(severity="info"))
    assert "ignored" not in headline(report)


def test_a_prediction_that_does_not_reach_all_blocks_says_how_far_it_got():
    known = {"forward_ms_predicted": 1.0, "backward_ms_predicted": 1.0}
    blocks = (samples.block("a", None, None, **known), samples.block("b", None, None))
    predicted = samples.report(replace(samples.profile([], []), blocks=blocks))
    assert "only 1 of 2 blocks" in missing_evidence(predicted)
    assert "leadline.predict(build)" in reproducing_code(predicted)


def test_the_first_lines_say_what_was_asked_and_what_was_not():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    batch = (torch.randn(8, 4), torch.randn(8, 1), torch.nn.functional.mse_loss)
    alone = leadline.check(model, *batch, probes=False)
    assert "Not asked: what outputs see, what the loss rewards, the optimizer (none)" in asked(alone)
    step = leadline.check(model, *batch, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "what outputs see" in asked(step).split("Not asked")[0]
    assert "one step" in asked(step).split("Not asked")[0]
    assert "Not asked: other batches, your loop." in asked(step)
    for text in (str(step), FORMATS["md"]([step], Look()), FORMATS["html"]([step], Look())):
        assert "Not asked: other batches" in text.replace("\n", " ")


def test_with_several_batches_the_first_lines_say_that_other_batches_were_asked():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    case = leadline.Case(model, *batches[0], torch.nn.functional.mse_loss, optimizer, batches=batches[1:])
    assert asked(leadline.check(case)).endswith("other batches. Not asked: your loop.")
