"""The depth-law checks tell a geometric law from a power law, and know how far is too far."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leadline.checks import model_checks
from leadline.checks._examples import geometric, power_law, profile_of
from leadline.checks._laws import backward_laws, forward_laws, widest_change
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import Finding

CHECKS = {each.code: each for each in model_checks()}


def found(profile) -> list[Finding]:
    return [finding for each in CHECKS.values() for finding in each(profile)]


def with_e_folds(change: float, blocks: int = 21):
    """Gradients whose power changes by exp(change) from the last block to the first, evenly."""
    return geometric(blocks=blocks, grad_gain=math.exp(change / (blocks - 1)))


@given(exponent=st.floats(0.0, 2.0), blocks=st.integers(4, 2000))
def test_a_power_law_of_depth_is_never_reported_up_to_exponent_two(exponent: float, blocks: int):
    if exponent * math.log(blocks) <= MAX_EFOLDS_ADAM:
        assert found(power_law(blocks=blocks, exponent=exponent)) == []


@given(change=st.floats(-60, 60), blocks=st.integers(4, 400))
def test_a_geometric_gradient_is_reported_exactly_beyond_its_reach(change: float, blocks: int):
    reported = {finding.code for finding in found(with_e_folds(change, blocks))}
    if abs(change) > MAX_EFOLDS_SGD + 1e-6:
        assert reported == {"B201" if change < 0 else "B202"}
    elif abs(change) < MAX_EFOLDS_SGD - 1e-6:
        assert reported == set()


@pytest.mark.parametrize(
    ("change", "severity"), [(-8.0, "warning"), (-15.0, "error"), (8.0, "warning"), (15.0, "error")]
)
def test_the_size_of_the_change_decides_the_severity(change: float, severity: str):
    (finding,) = found(with_e_folds(change))
    assert finding.severity == severity


def test_the_evidence_has_the_gain_per_block_and_the_depth_scale():
    (law,) = backward_laws(geometric(blocks=64, grad_gain=0.8))
    assert law.evidence()["gain_per_block"] == pytest.approx(0.8)
    assert law.evidence()["depth_scale_blocks"] == pytest.approx(-1 / math.log(0.8))


@pytest.mark.parametrize("wider", [2, 0.5])
def test_the_law_is_that_of_the_gradients_power_and_not_of_its_mean_square(wider: float):
    """Layers of which each is twice as wide as the last, and a gradient whose sum of squares stays."""
    sizes = [int(2.0**20 * wider**place) for place in range(18)]
    plain = profile_of([1.0] * 18, [1.0 / size for size in sizes])
    blocks = tuple(
        replace(block, elements=size) for block, size in zip(plain.blocks, [*sizes, sizes[-1]], strict=True)
    )
    kept = replace(plain, blocks=blocks)
    assert list(backward_laws(kept)) == []
    widest = widest_change(kept, "backward")
    assert widest is not None
    assert widest.change.rest == pytest.approx(0.0, abs=1e-3)
    spread = replace(kept, blocks=tuple(replace(block, backward_ms=1.0) for block in blocks))
    (law,) = backward_laws(spread)
    assert law.gain == pytest.approx(1 / wider, rel=1e-2)


def test_a_gradient_that_underflows_to_zero_is_a_decay():
    backward = [0.0] * 10 + [math.exp(-2.0 * (29 - depth)) for depth in range(10, 30)]
    (finding,) = found(profile_of([1.0] * 30, backward))
    assert (finding.code, finding.severity) == ("B201", "error")
    assert "exactly zero from layers.9" in finding.message


def test_a_gradient_that_is_zero_by_construction_is_not_a_decay():
    assert found(profile_of([1.0] * 12, [0.0] * 6 + [1.0] * 6)) == []


def test_normalized_stacks_may_amplify_gradients_up_to_the_higher_limit():
    gain = math.exp(10 / 16)
    assert [f.code for f in found(geometric(blocks=17, grad_gain=gain))] == ["B202"]
    assert found(geometric(blocks=17, grad_gain=gain, norms=2)) == []
    (finding,) = found(geometric(blocks=65, grad_gain=gain, norms=2))
    assert (finding.code, finding.severity) == ("B202", "warning")


def test_three_blocks_are_too_few_for_a_law():
    assert list(forward_laws(geometric(blocks=3, forward_gain=1e9))) == []


def test_nan_and_missing_values_are_skipped():
    forward = [2.0**depth if depth % 3 else None for depth in range(40)]
    forward[5] = math.nan
    (finding,) = found(profile_of(forward, [1.0] * 40))
    assert finding.code == "F101"


def test_a_cliff_is_named_and_does_not_count_as_a_law():
    forward = [1e-3, *(float(place) for place in range(1, 64))]
    profile = profile_of([1.0] * 64, [2e9, *(1 / place for place in range(1, 64))])
    (finding,) = [each for each in found(profile) if each.code == "B202"]
    assert finding.severity == "info"
    assert finding.where == profile.blocks[1].name
    assert "per block" in finding.message
    assert found(profile_of(forward, [1.0] * 64)) == []


def test_a_law_beside_a_cliff_is_still_reported_with_the_gain_of_the_law():
    gradients = [math.exp(-0.3 * (63 - place)) for place in range(64)]
    gradients[0] *= math.exp(-9)
    (finding,) = [each for each in found(profile_of([1.0] * 64, gradients)) if each.code == "B201"]
    assert finding.severity == "error"
    assert finding.evidence["gain_per_block"] == pytest.approx(math.exp(-0.3))
