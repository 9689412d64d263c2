"""Names cannot harm the terminal, and numbers have three significant digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from leadline.report.names import shorten, shorten_name
from leadline.text import clean, code_spans, count, factor, first_clause, layer_label, number, plural, share


@given(st.text(st.characters(exclude_categories=())))
def test_a_cleaned_name_is_printable_and_can_be_encoded(text):
    assert clean(text).isprintable()
    clean(text).encode()


@given(st.text())
def test_a_name_that_is_printable_is_left_alone(text):
    assert (clean(text) == text) == text.isprintable()


def test_what_was_taken_out_of_a_name_can_be_seen():
    assert clean("a\x1b[31mb\n\u202ec") == r"a\x1b[31mb\n\u202ec"


@given(st.text(), st.integers(1, 60))
def test_a_shortened_name_fits(text, width):
    assert cell_len(shorten(text, width)) <= width


@given(st.text(), st.integers(1, 60))
def test_a_shortened_path_fits(text, width):
    assert cell_len(shorten_name(text, width)) <= width
    assert cell_len(shorten_name(f"{text}.{text} … {text}.3", width)) <= width


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("transformer.h.11.attn.c_proj", 28, "transformer.h.11.attn.c_proj"),
        ("transformer.h.11.attn.c_proj", 20, "…h.11.attn.c_proj"),
        ("transformer.h.11.attn.c_proj", 15, "…11.attn.c_proj"),
        ("transformer.h.11.attn.c_proj", 12, "…h.11…c_proj"),
        ("encoder.layers.17.linear", 15, "…17.linear"),
        ("stages.2.blocks.14.mlp.fc1", 14, "…2…14.mlp.fc1"),
        ("transformer.h.0.c_proj … transformer.h.23.c_proj", 36, "transformer.h.0.c_proj … 23.c_proj"),
        ("transformer.h.0.c_proj … transformer.h.23.c_proj", 26, "…h.0.c_proj … 23.c_proj"),
        ("embeddings.word … classifier.out_proj", 30, "embeddings.word … …out_proj"),
    ],
)
def test_a_short_name_keeps_the_layer_number_and_the_last_component(name, width, short):
    assert shorten_name(name, width) == short


def test_a_layer_whose_name_is_a_number_is_not_read_as_a_number():
    assert layer_label("58") == "layer 58"
    assert layer_label("58 … 0") == "layers 58 … 0"
    assert layer_label("body.58") == "body.58"
    assert layer_label("body.58 … body.0") == "body.58 … body.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1.00"),
        (0.16667, "0.167"),
        (123.4, "123"),
        (-123.4, "-123"),
        (1234.5, "1.23e3"),
        (1.2345e-7, "1.23e-7"),
        (5e-324, "4.94e-324"),
        (1.7e308, "1.70e308"),
    ],
)
def test_a_number_has_three_significant_digits(value, text):
    assert number(value) == text


@given(st.floats(min_value=-1e308, max_value=1e308))
def test_a_written_number_is_within_half_a_percent_and_ten_characters(value):
    assert math.isclose(float(number(value)), value, rel_tol=0.005, abs_tol=1e-323)
    assert len(number(value)) <= 10


def test_a_factor_says_that_it_multiplies():
    assert factor(0.5) == "×0.500"
    assert factor(None) == "n/a"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (9_999, "9999"),
        (10_000, "10.0k"),
        (241_794, "242k"),
        (7_000_000_000, "7.00B"),
        (10**15, "1.00e3T"),
    ],
)
def test_a_count_is_exact_until_it_is_long(amount, text):
    assert count(amount) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "no blocks"), (1, "1 block"), (2, "2 blocks")])
def test_words_follow_the_number(amount, text):
    assert plural(amount, "block") == text


@pytest.mark.parametrize(
    "text",
    [
        "it keeps 0.167 at layers.3. So it dies. Yes.",
        "it keeps 0.167 at layers.3: that is not much",
        "it keeps 0.167 at layers.3; it is zero before",
        "it keeps 0.167 at layers.3.",
        "it keeps 0.167 at layers.3",
    ],
)
def test_a_clause_does_not_end_inside_a_number_or_a_name(text):
    assert first_clause(text) == "it keeps 0.167 at layers.3"


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Use `nn.ReLU()`.", [("Use ", False), ("nn.ReLU()", True), (".", False)]),
        ("an unpaired ` stays", [("an unpaired ` stays", False)]),
        ("`a` and `", [("a", True), (" and `", False)]),
        ("", []),
    ],
)
def test_pairs_of_backticks_mark_code(text, spans):
    assert code_spans(text) == spans


def test_a_share_is_a_percentage_and_a_missing_share_looks_like_a_missing_number():
    assert share(0.5) == "50 %"
    assert share(None) == number(None)
    assert share(math.nan) == number(math.nan)
