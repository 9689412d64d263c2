"""Pictures: valid XML whatever they are given, and nothing that was measured is left out."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.report.charts.bars import draw_bars, draw_ruler
from leadline.report.charts.lines import draw_chart, line_chart, marked
from leadline.report.charts.svg import element, words
from leadline.report.page import Bar, BarChart, Chart, Limit, Mark, Ruler, Series, Stretch
from tests.support import reports as samples

ANY = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
HOSTILE = [name for name in samples.HOSTILE_NAMES if name.isprintable()]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.replace("\0", ""))


def bars(*rows: Bar, label: str = "x", waterfall: bool = False) -> str:
    return draw_bars(BarChart(label=label, rows=rows, waterfall=waterfall))


def ruler(*marks: Mark, label: str = "x") -> str:
    return draw_ruler(Ruler(title=label, label=label, marks=marks))


def classes(picture: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in picture.iter() if name in (each.get("class") or "").split()]


@given(st.lists(ANY, max_size=60), st.sampled_from(["log", "linear", "share"]))
def test_a_chart_of_anything_is_valid_and_has_only_finite_coordinates(values, kind):
    made = line_chart([Series(values=values, band=values)], label="x", kind=kind)
    parsed(made)
    assert "nan" not in re.sub(r'class="[^"]*"', "", made).lower()
    assert "inf" not in re.sub(r'class="[^"]*"', "", made).lower()


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "infinite"), (0.0, "zero")])
def test_each_value_without_a_place_is_a_mark(value, name):
    made = parsed(line_chart([Series(values=[1.0, value, 1.0, value])], label="x"))
    assert len(classes(made, f"ll-{name}")) == 2
    assert marked(value, "log") == name
    assert not classes(parsed(line_chart([Series(values=[1.0, 2.0])], label="x")), f"ll-{name}")


def test_a_line_is_broken_where_nothing_was_measured_unless_it_is_sparse():
    values = [1.0, 2.0, None, 3.0, 4.0]
    path = classes(parsed(line_chart([Series(values=values)], label="x")), "ll-main")[0].get("d")
    sparse = classes(parsed(line_chart([Series(values=values, sparse=True)], label="x")), "ll-main")[0].get(
        "d"
    )
    assert (path.count("M"), sparse.count("M")) == (2, 1)


def test_a_band_of_e_folds_lies_around_its_line():
    made = parsed(line_chart([Series(values=[1.0, 1.0], band=[1.0, 1.0])], label="x"))
    numbers = [float(each) for each in re.findall(r"[\d.]+", classes(made, "ll-band")[0].get("d"))]
    heights = numbers[1::2]
    line = [float(each) for each in re.findall(r"[\d.]+", classes(made, "ll-main")[0].get("d"))][1]
    assert min(heights) < line < max(heights)
    assert line - min(heights) == pytest.approx(max(heights) - line, abs=0.2)


def heights(path: ElementTree.Element) -> list[float]:
    return [float(each) for each in re.findall(r"[\d.]+", path.get("d"))][1::2]


def chart_of(values, **more) -> ElementTree.Element:
    return parsed(draw_chart(Chart(title="x", series=(Series(values=values),), **more)))


def test_a_limit_is_drawn_where_its_level_lies_and_says_whose_it_is():
    made = chart_of([1.0, 1e-2, 1e-6], limits=(Limit(label="limit of B201", values=[1e-3, 1e-3, None]),))
    (line,), (main,) = classes(made, "ll-limit"), classes(made, "ll-main")
    above, below, crossed = heights(main)
    assert above < below < heights(line)[0] < crossed
    assert len(heights(line)) == 2
    assert [each.text for each in classes(made, "ll-limit-label")] == ["limit of B201"]


def test_a_limit_beyond_all_values_widens_the_axis():
    made = chart_of([1.0, 1.0], limits=(Limit(label="limit", values=[1e-9, 1e-9]),))
    assert 0 < heights(classes(made, "ll-main")[0])[0] < heights(classes(made, "ll-limit")[0])[0] < 190


def test_a_stretch_spans_its_places_and_a_single_place_gets_a_line_to_the_axis():
    stretches = (Stretch(label="B201", first=1, last=3), Stretch(label="F104", first=4, last=4))
    made = chart_of([1.0] * 5, stretches=stretches)
    bracket, line = (each.get("d") for each in classes(made, "ll-stretch"))
    dots = [float(each.get("cx")) for each in classes(made, "ll-main-dot")]
    assert bracket.startswith(f"M{dots[1]:.1f} ")
    assert f"H{dots[3]:.1f}" in bracket
    assert line.startswith(f"M{dots[4]:.1f} ")
    assert "V" in line
    assert [each.text for each in classes(made, "ll-limit-label")] == ["B201", "F104"]


def test_stretches_stand_above_the_lines():
    stretches = (Stretch(label="a", first=0, last=1), Stretch(label="b", first=0, last=1))
    made = chart_of([1.0, 100.0], stretches=stretches)
    labels = [float(each.get("y")) for each in classes(made, "ll-limit-label")]
    assert max(labels) < min(heights(classes(made, "ll-main")[0]))


def test_a_place_without_a_name_has_its_number():
    line = Series(values=[1.0, 2.0, 3.0])
    assert re.findall(r">(\w+)</text>", line_chart([line], label="loss", names=["first"]))[-3:] == [
        "first",
        "1",
        "2",
    ]


def test_a_thousand_points_are_a_small_picture():
    assert len(line_chart([Series(values=[1.01**i for i in range(1000)])], label="x")) < 8000


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_escapes_from_a_picture(name):
    for made in (
        line_chart([Series(values=[1.0], label=name)], label=name),
        bars(Bar(label=name, value=1.0, amount=name, hint=name), label=name),
        ruler(Mark(label=name, value=1.0, amount=name), label=name),
        element("g", words(name), title=name),
    ):
        assert not list(parsed(made).iter("script"))
        assert (
            name in "".join(parsed(made).itertext())
            or name in ElementTree.tostring(parsed(made), encoding="unicode", method="text")
            or name == ""
            or "label" in made
        )


def test_bars_of_a_waterfall_begin_where_the_last_one_ended():
    parts = [Bar(label="a", value=-2.0, amount=""), Bar(label="b", value=3.0, amount="")]
    total = Bar(label="all", value=1.0, amount="", tone="total")
    made = parsed(bars(*parts, total, waterfall=True))
    first, second, total = (each for each in made.iter("rect"))
    right = float(second.get("x")) + float(second.get("width"))
    assert float(first.get("x")) == pytest.approx(float(second.get("x")))
    assert right == pytest.approx(float(total.get("x")) + float(total.get("width")))


def test_what_is_not_finite_has_no_bar_and_is_said():
    made = parsed(bars(Bar(label="a", value=math.nan, amount="NaN")))
    assert not list(made.iter("rect"))
    assert "NaN" in "".join(made.itertext())


def test_marks_of_a_ruler_are_in_the_order_of_their_values():
    marks = [
        Mark(label="b", value=10.0, amount=""),
        Mark(label="a", value=0.1, amount=""),
        Mark(label="c", value=0, amount=""),
    ]
    made = parsed(ruler(*marks))
    dots = [float(each.get("cx")) for each in made.iter() if each.get("cx")]
    assert len(dots) == 2
    assert dots == sorted(dots)


def test_a_limit_that_is_known_nowhere_is_not_drawn():
    def limits(*levels: float | None) -> int:
        limit = Limit(values=levels, label="the limit")
        return draw_chart(Chart(title="x", series=(Series(values=[1.0, 2.0]),), limits=(limit,))).count(
            "the limit"
        )

    assert limits(1.5, 1.5) > 0
    assert limits(None, None) == 0
