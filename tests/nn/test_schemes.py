"""The table: what each row promises, and the identities its constants must satisfy."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.errors import InputError
from leadline.nn import SCHEMES, Layout, Place, recommended
from leadline.nn.schemes import find_scheme

ASKED_FOR = [
    "none",
    "post",
    "pre",
    "deepnorm",
    "deepnorm-adam",
    "residual-sqrt",
    "residual-linear",
    "keel",
    "peri",
    "sandwich",
    "layernorm-scaling",
    "gpt2-init",
    "layerscale",
    "rezero",
    "skipinit",
    "fixup",
    "t-fixup",
    "admin",
    "magneto",
    "mix",
    "b2t",
]
ENCODER, DECODER = Layout(sublayers=2), Layout(sublayers=3, stack="decoder")
blocks = st.integers(1, 2000)


def test_every_scheme_of_the_contract_has_a_row():
    assert set(ASKED_FOR) <= set(SCHEMES)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_named_after_its_key_and_cites_its_source(name):
    row = SCHEMES[name]
    assert row.name == name
    assert row.summary
    assert row.paper


def test_the_table_cannot_be_written_to():
    with pytest.raises(TypeError):
        SCHEMES["mine"] = SCHEMES["pre"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        SCHEMES["pre"].name = "mine"  # type: ignore[misc]


@pytest.mark.parametrize("name", SCHEMES)
@given(depth=blocks, share=st.floats(0, 0.999))
def test_every_law_is_finite_and_not_negative_at_every_place(name, depth, share):
    row, place = SCHEMES[name], Place(index=int(share * depth), depth=depth, layout=ENCODER)
    for law in (row.skip, row.branch, row.gain, row.norm_scale, row.embedding_gain):
        assert math.isfinite(law(place))
        assert law(place) >= 0


@pytest.mark.parametrize("name", SCHEMES)
def test_no_row_scales_queries_or_keys(name):
    assert not {"query", "key"} & {*SCHEMES[name].gain_roles, *SCHEMES[name].zero_roles}


@given(depth=blocks)
def test_deepnorm_of_one_stack_satisfies_2n_times_2_beta2_over_alpha2_is_1(depth):
    row = SCHEMES["deepnorm"]
    for layout in (ENCODER, Layout(sublayers=2, stack="decoder")):
        place = Place(index=0, depth=depth, layout=layout)
        assert 2 * depth * 2 * row.gain(place) ** 2 / row.skip(place) ** 2 == pytest.approx(1)


@given(encoder=blocks, decoder=blocks)
def test_deepnorm_of_a_pair_satisfies_its_two_identities(encoder, decoder):
    """Decoder: 3M * 2 beta^2 / alpha^2 = 1. Encoder: the paper's 0.81 and 0.87 are rounded, so 1.0122 for all
    N, M."""
    row = SCHEMES["deepnorm"]
    inner = Place(index=0, depth=decoder, layout=replace(DECODER, partner=encoder))
    outer = Place(index=0, depth=encoder, layout=replace(ENCODER, partner=decoder))
    assert 3 * decoder * 2 * row.gain(inner) ** 2 / row.skip(inner) ** 2 == pytest.approx(1)
    carried = decoder * row.gain(inner) ** 2 / row.skip(inner)
    through = 2 * encoder * 2 * row.gain(outer) ** 2 / row.skip(outer) ** 2
    assert carried * through == pytest.approx(1.0122, abs=1e-4)


@pytest.mark.parametrize(
    ("depth", "alpha", "beta"), [(6, 1.861, 0.380), (100, 3.761, 0.188), (1000, 6.687, 0.1057)]
)
def test_deepnorm_constants_are_those_printed_in_the_notes(depth, alpha, beta):
    place = Place(index=0, depth=depth, layout=ENCODER)
    assert SCHEMES["deepnorm"].skip(place) == pytest.approx(alpha, abs=6e-4)  # three printed decimals
    assert SCHEMES["deepnorm"].gain(place) == pytest.approx(beta, abs=6e-4)


@given(depth=blocks)
def test_adam_and_linear_rows_count_all_sublayers(depth):
    place = Place(index=0, depth=depth, layout=ENCODER)
    assert SCHEMES["deepnorm-adam"].skip(place) == pytest.approx((2 * depth) ** 0.5)
    assert SCHEMES["deepnorm-adam"].gain(place) == pytest.approx((2 * depth) ** -0.5)
    assert SCHEMES["keel"].skip(place) == 2 * depth
    assert SCHEMES["residual-linear"].branch(place) == pytest.approx(1 / (2 * depth))
    assert SCHEMES["residual-sqrt"].branch(place) == pytest.approx((2 * depth) ** -0.5)
    assert SCHEMES["gpt2-init"].gain(place) == pytest.approx((2 * depth) ** -0.5)


def test_t_fixup_has_the_published_constants():
    row = SCHEMES["t-fixup"]
    assert row.gain(Place(index=0, depth=16, layout=ENCODER)) == pytest.approx(0.67 * 16**-0.25)
    assert row.gain(Place(index=0, depth=16, layout=DECODER)) == pytest.approx((9 * 16) ** -0.25)
    assert row.embedding_gain(Place(index=0, depth=16, layout=ENCODER)) == pytest.approx((9 * 16) ** -0.25)


def test_mix_is_post_norm_in_the_first_quarter_only():
    row = SCHEMES["mix"]
    placed = [row.norms_at(Place(index=i, depth=8, layout=ENCODER)) for i in range(8)]
    assert placed == [("post",)] * 2 + [("pre",)] * 6


def test_a_misspelled_scheme_is_answered_with_the_right_one():
    with pytest.raises(InputError, match="did you mean 'deepnorm'"):
        find_scheme("depnorm", 4)


@pytest.mark.parametrize("depth", [0, -1, 2.5, True])
def test_a_depth_that_is_no_positive_whole_number_is_refused(depth):
    with pytest.raises(InputError, match="depth"):
        Place(index=0, depth=depth)


def test_an_index_outside_the_stack_is_refused():
    with pytest.raises(InputError, match="index"):
        Place(index=4, depth=4)


def test_deep_stacks_get_a_scheme_whose_adam_step_is_free_of_depth():
    assert recommended(6) == "pre"
    assert SCHEMES[recommended(1000)].calibrated_for == "adam"
