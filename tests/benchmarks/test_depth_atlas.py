"""The depth atlas: complete, rendered from its stored results, and in agreement with what is derived."""

from __future__ import annotations

import json

import pytest

from benchmarks import depth_atlas
from leadline.nn import SCHEMES


def test_the_depth_atlas_has_all_schemes_with_five_seeds_and_its_page_is_what_they_render_to():
    results = json.loads((depth_atlas.ROOT / "benchmarks" / "results" / "depth_atlas.json").read_text())
    assert set(depth_atlas.exponents(results)) == set(SCHEMES)
    assert len(SCHEMES) >= 30
    assert depth_atlas.PAGE.read_text() == depth_atlas.page(results)
    assert depth_atlas.PICTURE.read_text() == depth_atlas.draw(results)


def test_the_atlas_measures_the_known_exponents_again():
    values = [depth_atlas.changes("residual-linear", depth, 0) for depth in (8, 24)]
    for rule, expected in {"sgd": -1.0, "adam": 0.0, "muon": 0.0, "lion": 0.0}.items():
        assert depth_atlas.slope((8, 24), [each[rule] for each in values]) == pytest.approx(expected, abs=0.2)
