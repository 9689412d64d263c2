"""The change of the function by one step: its growth with depth, measured now and as published."""

import importlib.util
import json
import sys

import pytest

from leadline.nn import SCHEMES
from tests.support import ROOT

DERIVED_BAND = 0.1  # the claim of the project: measured within 0.1 of the derived exponent
QUICK_BAND = 0.3  # three seeds and two depths scatter by about 0.1 (one sd); three of these


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = load("update_exponents")
blocks = load("blocks")
runs = load("thousand_layers")


def quick_slope(scheme: str, rule: str, moved: str) -> float:
    depths = (8, 24)
    slopes = [
        bench.slope(depths, [bench.change_of_function(scheme, d, seed, rule, moved=moved) for d in depths])
        for seed in range(3)
    ]
    return sum(slopes) / 3


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("scheme", bench.DERIVED)
def test_exponent_of_the_matrices_is_near_the_derived_one(scheme, rule):
    expected = bench.DERIVED[scheme][rule == "adam"]
    assert quick_slope(scheme, rule, "matrices") == pytest.approx(expected, abs=QUICK_BAND)


# Fixup's scalar biases see the sum of the read-out, whose square scatters like chi-square with one degree of
# freedom: five seeds leave +-0.6, so its SGD column is published but not claimed.
QUICKEST = ("residual-sqrt",)  # the others by `make test-slow`
RESOLVED = [(s, r) for s in bench.DERIVED for r in ("sgd", "adam") if (s, r) != ("fixup", "sgd")]


@pytest.mark.parametrize(
    ("scheme", "rule"),
    [each if each[0] in QUICKEST else pytest.param(*each, marks=pytest.mark.slow) for each in RESOLVED],
)
def test_with_its_parameter_groups_the_step_of_every_parameter_is_free_of_depth(scheme, rule):
    assert quick_slope(scheme, rule, "groups") == pytest.approx(0, abs=QUICK_BAND)


def test_at_one_rate_the_norms_on_the_stream_make_deepnorm_grow_with_depth():
    assert quick_slope("deepnorm", "sgd", "all") > 0.5


def test_every_scheme_and_both_step_rules_are_published_with_five_seeds():
    published = json.loads(bench.RESULTS.read_text())
    assert set(published["schemes"]) == set(bench.MEASURED)
    for row in published["schemes"].values():
        for rule in bench.STEPS:
            for moved in bench.MOVED:
                assert len(row[f"{rule}_{moved}"]["slopes"]) >= 5


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("scheme", bench.DERIVED)
def test_published_exponent_is_within_a_tenth_of_the_derived_one(scheme, rule):
    row = json.loads(bench.RESULTS.read_text())["schemes"][scheme]
    assert row[f"{rule}_matrices"]["mean"] == pytest.approx(
        bench.DERIVED[scheme][rule == "adam"], abs=DERIVED_BAND
    )


@pytest.mark.parametrize(("scheme", "rule"), RESOLVED)
def test_published_exponent_with_parameter_groups_is_within_a_tenth_of_zero(scheme, rule):
    row = json.loads(bench.RESULTS.read_text())["schemes"][scheme]
    assert row[f"{rule}_groups"]["mean"] == pytest.approx(0, abs=DERIVED_BAND)


def between(page: str, name: str) -> str:
    return page.split(f"<!-- {name} -->\n", 1)[1].split(f"\n<!-- /{name} -->", 1)[0]


def test_tables_in_the_docs_are_what_the_results_render_to():
    page = bench.PAGE.read_text()
    speed = json.loads(blocks.RESULTS.read_text())
    assert between(page, "update-exponents") == bench.render(json.loads(bench.RESULTS.read_text()))
    assert between(page, "block-speed") == blocks.render_speed(speed)
    assert between(page, "block-depth") == blocks.render_depth(speed)
    assert between(page, "block-goals") == blocks.render_goals(speed)
    records = json.loads(runs.RESULTS.read_text())
    assert between(page, "thousand-layers") == runs.render(records)
    assert between(page, "thousand-layers-cost") == runs.render_costs(records)
    assert runs.DRAWING.read_text() == runs.draw(records)


def test_the_table_of_schemes_in_the_docs_is_the_table_of_the_code():
    page = bench.PAGE.read_text()
    rows = [f"| `{row.name}` | {row.summary} | {row.paper} |" for row in SCHEMES.values()]
    assert "\n".join(rows) in page
