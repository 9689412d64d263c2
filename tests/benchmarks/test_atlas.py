"""The atlas: whole families are held out, and the truth comes from the outputs after training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from benchmarks.atlas import page
from benchmarks.atlas.families.dense import numbers_of
from benchmarks.atlas.flaws import FLAWS
from benchmarks.atlas.problem import FAMILIES, Batch, Recipe, Setup, constant_score, half_of, score
from benchmarks.atlas.problems import Problem
from benchmarks.atlas.scores import JUDGES, rows
from benchmarks.atlas.scores import score as score_of
from benchmarks.atlas.truth import judge, naive_facts, outcome_of, progress
from benchmarks.result_files import ROOT, load


def test_the_half_of_a_family_depends_on_its_name_alone():
    halves = {name: half_of(name) for name in FAMILIES}
    assert set(halves.values()) == {"calibration", "held out"}
    assert halves["gpt"] == "held out"
    assert halves["densenet"] == "calibration"


def test_the_atlas_is_wide():
    assert len(FAMILIES) >= 36
    assert len(FLAWS) >= 40
    assert len({each.area for each in FAMILIES.values()}) >= 20


def test_a_perfect_output_scores_one_and_a_constant_output_nothing():
    targets = torch.randn(64, 3)
    perfect = Setup(
        nn.Identity(), lambda generator: Batch((targets,), targets), nn.functional.mse_loss, "numbers"
    )
    batches = [Batch((targets,), targets)]
    assert score(perfect, batches) == pytest.approx(1.0)
    assert constant_score(perfect, batches) == 0.0


def test_progress_is_the_part_of_the_healthy_gain():
    healthy = {"score": 0.9, "constant": 0.1}
    assert progress({"score": 0.5}, healthy) == pytest.approx(0.5)
    assert progress({"score": None}, healthy) == -math.inf


def test_every_seed_must_agree():
    assert judge([0.7, 0.9]) == "reaches"
    assert judge([0.1, 0.3]) == "fails"
    assert judge([0.1, 0.9]) == judge([0.5]) == "borderline"


def test_a_flaw_in_the_loss_cannot_hide_in_the_score():
    family = FAMILIES["plain-regression"]
    healthy = outcome_of(Problem(family=family, flaw=FLAWS["healthy"]), 0)
    negated = outcome_of(Problem(family=family, flaw=FLAWS["loss negated"]), 0)
    assert progress(healthy, healthy) == 1.0
    assert progress(negated, healthy) < 0


def test_naive_judges_see_the_fall_of_the_loss():
    facts = naive_facts(Problem(family=FAMILIES["plain-regression"], flaw=FLAWS["rate x0.0001"]))
    assert 0 <= facts["one_batch"] < 0.05


def test_an_optimizer_gets_only_the_parameters_that_were_chosen():
    model = nn.Linear(3, 2)
    held = Recipe(choose=lambda net: [net.bias]).build(model).param_groups[0]["params"]
    assert [id(each) for each in held] == [id(model.bias)]


def test_data_are_drawn_anew_for_every_batch():
    draw, generator = numbers_of(4, 2), torch.Generator().manual_seed(0)
    assert not torch.equal(draw(generator).inputs[0], draw(generator).inputs[0])


def test_the_readme_quotes_the_figures_of_the_families_that_were_held_out():
    found = [row for row in rows(load("atlas_truth"), load("atlas")) if row.half == "held out"]
    readme = (ROOT / "README.md").read_text()
    for judge_name in list(JUDGES)[:2]:
        assert f"{100 * score_of(found, JUDGES[judge_name]).balanced:.1f} %" in readme


def test_the_tables_of_the_page_follow_from_the_stored_results():
    found, text = (
        rows(load("atlas_truth"), load("atlas")),
        (ROOT / "docs" / "lab-notes" / "atlas.md").read_text(),
    )
    assert len({row.family for row in found}) == len(FAMILIES)
    for mark, render in page.RENDERERS.items():
        assert f"<!-- begin {mark} -->\n\n{render(found).strip()}\n\n<!-- end {mark} -->" in text
