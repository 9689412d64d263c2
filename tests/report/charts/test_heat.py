"""The heat map: every cell is there, and a curve passes where its numbers say."""

import re

import pytest

from leadline.report.charts.heat import Axis, Curve, heat_map

ACROSS, UP = Axis(title="gain", values=(1.0, 2.0, 3.0)), Axis(title="depth", values=(10, 100), log=True)


def test_every_cell_has_its_value_as_words_and_as_shade():
    svg = heat_map([[0.0, 0.5, 1.0], [0.25, 0.25, 0.25]], ACROSS, UP, label="a map")
    assert svg.count("<rect") == 6
    assert "gain 2, depth 10: 50%" in svg
    assert re.findall(r'fill-opacity="([\d.]+)"', svg) == ["0.00", "0.50", "1.00", "0.25", "0.25", "0.25"]


@pytest.mark.parametrize(("value", "place"), [(10, 0.0), (100, 1.0), (10**1.5, 0.5), (1000, 2.0), (1, -1.0)])
def test_a_number_lies_between_the_places_of_its_neighbours(value, place):
    assert UP.place(value) == pytest.approx(place)


def test_a_curve_is_drawn_only_where_it_is_on_the_map():
    curve = Curve(values=(10.0, None, 10.0))
    (path,) = re.findall(
        r'<path d="([^"]*)"', heat_map([[0.0] * 3] * 2, ACROSS, UP, label="m", curves=[curve])
    )
    assert path.count("M") == 2
    assert "L" not in path


def test_what_a_title_holds_is_escaped():
    assert "<b>" not in heat_map(
        [[0.0]], Axis(title="<b>", values=(1.0,)), Axis(title="y", values=(1,)), label="<b>"
    )


def test_the_only_value_of_an_axis_is_at_its_start():
    assert Axis(title="rate", values=[0.1]).place(5.0) == 0.0
