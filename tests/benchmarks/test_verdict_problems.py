"""The problems of the verdict benchmark: reproducible, split by hash, and buildable."""

import json
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch.torch_version import TorchVersion

from benchmarks.verdicts.case_builder import build, problem_batches
from benchmarks.verdicts.cases import load_labels
from benchmarks.verdicts.data import FITTED, task
from benchmarks.verdicts.problem import FAMILIES, Problem, from_dict, to_dict
from benchmarks.verdicts.problem_sample import generate, sample_pairs

PROBLEMS = generate()
KINDS = ({(p.family, getattr(p, field)): p for p in PROBLEMS} for field in ("scheme", "flaw", "init", "data"))
ONE_OF_EACH = {p.key: p for kind in KINDS for p in kind.values()}.values()
SMALL = Problem(family="mlp", cause="none", data="blobs", depth=2, width=8, init="critical", rate=0.01)


def test_the_generator_makes_the_same_problems_every_time():
    assert generate() == PROBLEMS
    assert generate(seed=1) != PROBLEMS


def test_every_key_is_used_once():
    assert len({p.key for p in PROBLEMS}) == len(PROBLEMS) >= 400


def test_a_twin_differs_from_its_problem_in_its_flaw_and_not_in_its_seed():
    twins = [(sick, twin) for sick, twin in sample_pairs() if twin is not None]
    assert len(twins) > len(PROBLEMS) / 3
    assert all(sick.digest != twin.digest and sick.seed == twin.seed for sick, twin in twins)


def test_a_problem_survives_json():
    for problem in PROBLEMS:
        assert from_dict(json.loads(json.dumps(to_dict(problem)))) == problem


def test_the_key_depends_on_every_field_except_the_cause():
    assert replace(SMALL, cause="something").key == SMALL.key
    assert replace(SMALL, rate=0.02).key != SMALL.key
    assert replace(SMALL, steps=151).digest != SMALL.digest


def test_the_split_is_pinned():
    assert (SMALL.key, SMALL.half) == ("mlp-plain-2-be882467", "held-out")


def test_each_family_has_problems_in_both_halves_and_with_and_without_a_flaw():
    for family in FAMILIES:
        mine = [p for p in PROBLEMS if p.family == family]
        halves = Counter(p.half for p in mine)
        assert min(halves.values()) > len(mine) / 3
        assert 0.3 < sum(p.cause == "none" for p in mine) / len(mine) < 0.7


@pytest.mark.parametrize("problem", ONE_OF_EACH, ids=lambda p: p.key)
def test_a_problem_of_each_kind_is_built_and_has_a_loss(problem):
    shallow = replace(problem, depth=min(problem.depth, 3))
    case = build(shallow)
    assert case.loss(case.model(case.inputs), case.targets).isfinite() or problem.cause != "none"


def test_building_twice_gives_the_same_weights_and_batches_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    first, second = build(SMALL), build(SMALL)
    assert torch.equal(before, torch.random.get_rng_state())
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.inputs, next(problem_batches(SMALL))[0])
    assert [x.shape for x, _ in first.batches] == [x.shape for x, _ in islice(problem_batches(SMALL), 8)]


@pytest.mark.parametrize("data", FITTED)
def test_the_fitted_loss_lies_well_below_the_trivial_one(data):
    assert task(data).fitted < 0.8 * task(data).trivial


def test_every_committed_label_belongs_to_a_problem_of_the_generator():
    known = {p.key: p for p in PROBLEMS}
    for key, case in load_labels().items():
        assert case.problem == known[key]


@pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.13"), reason="labeled with torch 2.13: older ones draw other weights"
)
def test_the_models_built_today_are_those_that_were_labeled():
    cases = [
        case for case in load_labels().values() if case.problem.depth <= 6 and case.first_loss is not None
    ]
    one_each = {(case.problem.family, case.problem.scheme): case for case in cases}.values()
    assert len(one_each) > 20
    for case in one_each:
        built = build(case.problem)
        first = built.loss(built.model(built.inputs), built.targets).item()
        assert first == pytest.approx(case.first_loss, rel=2e-3), case.problem.key
