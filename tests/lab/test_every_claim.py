"""Laws of all claims: verdicts are as published, a broken experiment changes them, and random state is restored."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
import torch

from leadline.checks import model_checks
from leadline.lab.articles import ARTICLES
from leadline.lab.claim import HEADINGS, Claim, all_claims, run_claims
from leadline.records import Lab
from leadline.records.experiment import ruling
from tests.support import ROOT

STORED = ROOT / "benchmarks" / "results" / "lab.json"

ALL = all_claims()
CLAIMS = [pytest.param(each, id=each.code, marks=[pytest.mark.slow] if each.slow else []) for each in ALL]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_verdict_is_as_published_and_the_random_state_is_unchanged(claim: Claim):
    before = torch.get_rng_state()
    experiment = claim.run()
    assert experiment.verdict == claim.verdict, [
        (check.what, check.measured, check.agrees) for check in experiment.checks
    ]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_experiment_broken_on_purpose_gets_another_verdict(claim: Claim):
    assert claim.run(**claim.falsified_by).verdict != claim.verdict


SMALL = {  # small sizes for the constants that all experiments share
    "DEPTHS": (2, 3, 4), "SHALLOW": 2, "DEEP": 3, "DEPTH": 4, "LAYERS": 6, "WIDTH": 8, "NARROW": 8, "WIDE": 12,
    "BATCH": 6, "INPUTS": 3, "SAMPLES": 8, "NETWORKS": 4, "PATHS": 40, "COUNT": 10, "STEPS": 20, "DRAWS": 1,
    "RATES": (1e-3, 2e-3),
}  # fmt: skip
BOUND = {"S0-6", "S0-E3"}  # their width is also the default of an argument


@pytest.mark.parametrize("claim", [each for each in ALL if each.slow], ids=lambda claim: claim.code)
def test_a_slow_experiment_at_small_size_makes_the_same_kinds_of_checks_and_plots(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
):
    stored = {each.code: each for each in Lab.from_json(STORED.read_text()).experiments}[claim.code]
    home = sys.modules[claim.measure.__module__]
    for name, size in SMALL.items():
        if hasattr(home, name) and not (name == "WIDTH" and claim.code in BOUND):
            monkeypatch.setattr(home, name, size)
    before = torch.get_rng_state()
    found = claim.run(seeds=2)
    assert (len(found.plots), found.seeds) == (len(stored.plots), 2)
    assert {check.by for check in found.checks} == {check.by for check in stored.checks}
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: claim.code)
def test_every_claim_has_a_code_a_verdict_a_summary_and_all_sections(claim: Claim):
    assert re.fullmatch(r"S\d-(\d+|[A-Z]\d*)", claim.code)
    assert claim.verdict in ("holds", "holds under conditions", "false as stated")
    assert all(claim.section(heading) for heading in HEADINGS)
    assert claim.summary.endswith(".")
    assert set(claim.falsified_by) <= set(inspect.signature(claim.measure).parameters)


def test_every_numbered_claim_of_every_article_exists():
    numbered = {"S0": 12, "S2": 12, "S3": 9, "S4": 10}
    wanted = {f"{article}-{place}" for article, most in numbered.items() for place in range(1, most + 1)}
    assert wanted | {"S0-F"} <= {each.code for each in ALL}
    assert {article.prefix for article in ARTICLES} == set(numbered)


def test_every_code_named_in_errata_and_explanations_exists():
    known = {each.code for each in ALL} | {rule.code for rule in model_checks()}
    text = "\n".join([*(each.doc for each in ALL), *(each.wrong for each in ARTICLES)])
    named = set(re.findall(r"\bS\d-(?:\d+|[A-Z]\d*)|\b[BFIRUWN]\d{3}\b", text))
    assert named <= known


def test_stored_texts_match_the_claims_and_stored_verdicts_follow_from_their_checks():
    stored = Lab.from_json(STORED.read_text())
    assert [each.code for each in stored.experiments] == [each.code for each in ALL]
    for found, claim in zip(stored.experiments, ALL, strict=True):
        texts = (found.claim, found.article, found.test, found.truth)
        assert texts == (claim.summary, *(claim.section(heading) for heading in HEADINGS)), claim.code
        assert found.published == claim.verdict == found.verdict == ruling(found.checks), claim.code


def test_progress_names_each_claim():
    calls = []
    quick = next(each for each in all_claims() if not each.slow)
    run_claims([quick], "0.1.0", seeds=2, progress=lambda *call: calls.append(call))
    assert calls == [(0, 1, quick.code)]


def test_two_claims_with_one_code_are_an_error(monkeypatch: pytest.MonkeyPatch):
    first: Claim = all_claims()[0]
    all_claims.cache_clear()
    monkeypatch.setattr("leadline.lab.claim.collect", lambda *_: [first, first])
    with pytest.raises(ValueError, match=f"two claims have the code {first.code}"):
        all_claims()
    monkeypatch.undo()
    all_claims.cache_clear()
