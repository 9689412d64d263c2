"""The charts: one cursor and one zoom for all, by mouse and by keyboard; what is no number is drawn."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from leadline.records import LimitLevel, Margin
from leadline.report.charts.svg import even_ticks, fitted, log_ticks
from leadline.text import number
from tests.support import reports as samples
from tests.support.browser_reports import page
from tests.support.parsed_html import html_of


def panel(opened, key):
    return opened.locator(f"[data-key={key}] .u-over")


def over(opened, key, place):
    """Move the mouse to a part of a chart's width; returns where that is."""
    panel(opened, key).scroll_into_view_if_needed()
    box = panel(opened, key).bounding_box()
    x, y = box["x"] + place * box["width"], box["y"] + box["height"] / 2
    opened.mouse.move(x, y)
    return x, y


def drag(opened, key, start, stop):
    x, y = over(opened, key, start)
    opened.mouse.down()
    opened.mouse.move(x + 5, y)
    over(opened, key, stop)
    opened.mouse.up()


def labels(opened, key):
    return opened.locator(f"[data-key={key}] [data-series]").all_inner_texts()


def ranges(opened):
    """First and last block on the screen, of each chart, as its cursor tells when it is at the edges."""
    found = []
    for key in ("forward", "backward"):
        ends = []
        for place in (0.001, 0.999):
            over(opened, key, place)
            ends.append(int(opened.locator(".readout").inner_text().split()[1]))
        found.append(tuple(ends))
    return found


def test_pointing_at_one_chart_tells_the_block_and_its_values_in_all(show):
    opened = show(page("sick"))
    over(opened, "forward", 0.5)
    place = int(opened.locator(".readout").inner_text().split()[1])
    assert 28 <= place <= 31
    assert f"layers.{place}" in opened.locator(".readout").inner_text()
    report = samples.sick().profile.blocks[place]
    assert labels(opened, "forward") == [number(report.forward_ms)]
    assert labels(opened, "backward") == [number(float(f"{report.backward_ms:.4g}"))]


def test_leaving_the_chart_takes_the_values_away(show):
    opened = show(page("sick"))
    over(opened, "forward", 0.5)
    opened.mouse.move(2, 2)
    assert labels(opened, "backward") == [""]
    assert "60 blocks" in opened.locator(".readout").inner_text()


def test_dragging_over_one_chart_zooms_all_and_the_button_resets(show):
    opened = show(page("sick"))
    reset = opened.get_by_role("button", name="reset zoom")
    assert not reset.is_visible()
    drag(opened, "forward", 0.25, 0.5)
    zoomed = ranges(opened)
    assert zoomed[0] == zoomed[1]
    assert 12 <= zoomed[0][0] <= 18
    assert 26 <= zoomed[0][1] <= 32
    assert reset.is_visible()
    reset.click()
    assert ranges(opened) == [(0, 59), (0, 59)]
    assert not reset.is_visible()


def test_a_double_click_resets_all(show):
    opened = show(page("sick"))
    drag(opened, "backward", 0.3, 0.6)
    assert ranges(opened) != [(0, 59), (0, 59)]
    x, y = over(opened, "backward", 0.5)
    opened.mouse.dblclick(x, y)
    assert ranges(opened) == [(0, 59), (0, 59)]


def test_the_keyboard_moves_zooms_and_resets(show):
    opened = show(page("sick"))
    opened.locator(".profiles").focus()
    opened.keyboard.press("Home")
    assert opened.locator(".readout").inner_text().split()[1] == "0"
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("Shift+ArrowRight")
    assert opened.locator(".readout").inner_text().split()[1] == "11"
    opened.keyboard.press("ArrowLeft")
    assert labels(opened, "forward") == [number(samples.sick().profile.blocks[10].forward_ms)]
    opened.keyboard.press("End")
    assert opened.locator(".readout").inner_text().split()[1] == "59"
    opened.keyboard.press("ArrowLeft")
    for _ in range(30):
        opened.keyboard.press("ArrowLeft")
    opened.keyboard.press("+")
    assert opened.get_by_role("button", name="reset zoom").is_visible()
    opened.keyboard.press("Escape")
    assert not opened.get_by_role("button", name="reset zoom").is_visible()
    assert "60 blocks" in opened.locator(".readout").inner_text()


def test_the_charts_and_every_button_can_be_reached_by_tab(show):
    opened = show(page("real"))
    reached = set()
    for _ in range(60):
        opened.keyboard.press("Tab")
        reached.add(opened.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert {"profiles", "A", "BUTTON", "SUMMARY"} <= reached


COUNT = """(key) => {
  const canvas = document.querySelector(`[data-key=${key}] canvas`), wanted = NAME;
  const probe = document.createElement('canvas').getContext('2d');
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(wanted).trim();
  probe.fillRect(0, 0, 1, 1);
  const color = probe.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200 && [0, 1, 2].every((c) => Math.abs(data[i + c] - color[c]) < 24)) found++;
  return found;
}"""


def painted(opened, key, color):
    """Pixels of one of the page's colours in a chart."""
    return opened.evaluate(COUNT.replace("NAME", repr(color)), key)


@pytest.mark.parametrize(("value", "color"), [(math.nan, "--alarm"), (math.inf, "--alarm"), (0.0, "--ink")])
def test_what_has_no_place_on_a_logarithmic_axis_is_drawn(show, value, color):
    clean = show(html_of(samples.report(samples.profile([1.0] * 30, [1.0] * 30))))
    assert painted(clean, "forward", color) == 0
    values = [1.0] * 10 + [value] * 10 + [1.0] * 10
    opened = show(html_of(samples.report(samples.profile(values, [1.0] * 30))))
    assert painted(opened, "forward", color) >= 10 * 5
    assert painted(opened, "backward", color) == 0


def test_a_chart_of_nothing_but_nan_is_named_instead_of_drawn(show):
    opened = show(html_of(samples.report(samples.profile([1.0] * 9, [math.nan] * 9))))
    assert opened.messages == []
    assert opened.locator("[data-key=backward]").count() == 0
    assert "no finite value in: backward signal" in opened.locator(".readout").inner_text()


def test_a_page_on_which_nothing_is_finite_has_no_charts_and_no_errors(show):
    opened = show(html_of(samples.report(samples.profile([math.nan] * 9, [math.nan] * 9))))
    assert opened.messages == []
    assert opened.locator(".plot").count() == 0


def test_limits_and_the_blocks_of_a_finding_are_drawn(show):
    plain = samples.sick()
    level = LimitLevel(quantity="backward", level=1e-9, blocks=(58, 0))
    margin = Margin(code="B201", quantity="decay", value=100.0, limit=7.0, over_depth=level)
    finding = replace(samples.finding(), layers=(0, 58))
    assert painted(show(html_of(replace(plain, findings=()))), "backward", "--alarm") == 0
    limited = show(html_of(replace(plain, findings=(), margins=(margin,))))
    assert painted(limited, "backward", "--alarm") > 50
    assert painted(limited, "forward", "--alarm") == 0
    assert painted(show(html_of(replace(plain, findings=(finding,)))), "forward", "--alarm") > 50


def test_a_value_without_neighbours_is_a_point(show):
    values = [0.0 if place != 15 else 1.0 for place in range(30)]
    opened = show(html_of(samples.report(samples.profile(values, [1.0] * 30))))
    assert painted(opened, "forward", "--accent") > 5


def test_the_dark_scheme_is_dark_and_charts_follow_it(show):
    opened = show(page("sick"), color_scheme="light")
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    before = painted(opened, "forward", "--accent")
    opened.emulate_media(color_scheme="dark")
    dark = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert brightness(light) > 200
    assert brightness(dark) < 50
    opened.wait_for_timeout(50)
    assert painted(opened, "forward", "--accent") > before / 2 > 10


def brightness(color: str) -> float:
    return sum(float(part) for part in color.strip("rgb()").split(",")[:3]) / 3


def test_print_shows_what_is_folded_and_hides_what_is_pressed(show):
    opened = show(page("reviewed"))
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.emulate_media(media="print")
    assert opened.locator("details:not([open])").count() == 0
    assert not opened.get_by_role("button", name="Save as JSON").is_visible()
    assert not opened.locator("nav").is_visible()
    assert len(opened.pdf()) > 10_000


@pytest.mark.parametrize("name", ["real", "repaired", "compared"])
def test_on_paper_charts_are_pictures_that_fit(show, name):
    opened = show(page(name), width=800)
    opened.emulate_media(media="print")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 800
    assert opened.locator(".plot .sketch svg").first.is_visible()
    assert not opened.locator(".plot canvas").first.is_visible()


def test_charts_are_as_wide_as_the_window_lets_them(show):
    opened = show(page("sick"), width=1100)
    wide = opened.locator("[data-key=forward] canvas").bounding_box()["width"]
    opened.set_viewport_size({"width": 360, "height": 800})
    opened.wait_for_timeout(100)
    narrow = opened.locator("[data-key=forward] canvas").bounding_box()["width"]
    assert narrow < 360 < wide


SPANS = [(0.0, 1.0), (-3.2, 4.1), (-55.0, 0.3), (-300.0, 12.0), (-0.06, 1.06), (2.0, 2.6), (-1.5, 0.2)]


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_the_browser_and_python_put_their_ticks_in_the_same_places(show, low, high):
    opened = show(page("healthy"))
    for kind, ours in (("log", log_ticks(low, high)), ("linear", even_ticks(low, high))):
        theirs = opened.evaluate(f"leadline.ticks({low}, {high}, {kind!r})")
        assert [label for _, label in theirs] == [label for _, label in ours]
        assert [at for at, _ in theirs] == pytest.approx([at for at, _ in ours])


def test_the_browser_and_python_write_numbers_alike(show):
    values = [1.0, 0.154, 123.4, 1234.0, 99999.0, 1e-4, 1.234e-5, 8.03e-48, -0.5, 9.996, 0.0, 1e300]
    opened = show(page("healthy"))
    assert opened.evaluate("values => values.map(leadline.number)", values) == [
        number(each) for each in values
    ]
    assert opened.evaluate("['NaN', 'Infinity', null].map(leadline.number)") == ["NaN", "Inf", "n/a"]


def test_the_browser_and_python_fit_their_axes_alike(show):
    opened = show(page("healthy"))
    for values in ([1.0, 1.1], [1e-9, 1.0], [5.0]):
        scale = fitted(values, "log")
        logs = [math.log10(each) for each in values]
        theirs = opened.evaluate(f"leadline.fitted({min(logs)}, {max(logs)}, 'log')")
        assert theirs == pytest.approx([scale.low, scale.high])


LIVE = """async (zoomed) => {
  const host = document.querySelector('[data-key=forward] .plot'), shared = leadline.group();
  const spec = (length) => ({ kind: 'log', series: [{ label: 'x', tone: 'main', values: Array(length).fill(1) }] });
  const chart = leadline.chart(host, spec(10), shared);
  if (zoomed) shared.zoom(2, 5);
  await new Promise(requestAnimationFrame);
  chart.update(spec(20));
  await new Promise(requestAnimationFrame);
  const { min, max } = chart.plot.scales.x;
  return [min, max];
}"""


@pytest.mark.parametrize(("zoomed", "range_"), [(False, [0, 19]), (True, [2, 5])])
def test_new_values_extend_a_chart_and_leave_a_zoom_alone(show, zoomed, range_):
    assert show(page("sick")).evaluate(LIVE, zoomed) == range_
