"""The live page in a browser: it follows a training, survives its server, and asks nobody but itself."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leadline.errors import LeadlineError
from tests.browser.conftest import Opened
from tests.support import live_training as training
from tests.support import reports as samples
from tests.support.live_server import Serving, alert, begin, event, put, row

SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Heuristic: milliseconds; the machine may be busy, and waiting ends as soon as the condition holds.
MAX_WAIT_MS = 180_000
ALARMED = """() => {
    const canvas = document.querySelector('[data-name=weight_norm] .heat canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let i = 0; i < data.length; i += 4)
        if (data[i] === 0xc8 && data[i + 1] === 0x49 && data[i + 2] === 0x0d) found++;
    return found;
}"""  # pixels of the color --alarm, light scheme
LOST = "net::ERR_"  # what the browser itself says while the server is away


def expect(locator):
    """Assertions that wait. Imported here: the other tests are collected where there is no playwright."""
    from playwright.sync_api import expect

    return expect(locator)


@pytest.fixture
def visit(chromium):
    """`visit(url)` opens a served page; further arguments are those of a browser context."""
    contexts = []

    def visit(url: str, **choices) -> Opened:
        size = {"width": choices.pop("width", 1100), "height": 900}
        contexts.append(chromium.new_context(viewport=size, **choices))
        opened = Opened(contexts[-1].new_page())
        opened.page.set_default_timeout(MAX_WAIT_MS)
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.messages.append(message.text))
        opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
        opened.page.goto(url)
        opened.page.wait_for_selector("html[data-ready=yes]")
        return opened

    yield visit
    for context in contexts:
        context.close()


@pytest.fixture
def long_run(tmp_path) -> Path:
    """A hundred steps, an alert that stands and one that is over, an event, a stored check."""
    path = tmp_path / "long.leadline"
    with begin(path, 100) as writer:
        writer.alert(alert(40))
        writer.alert(alert(50, "cleared"))
        writer.alert(alert(60))
        writer.event(event(60))
        writer.event(event(61, "sample"))
        writer.report(50, samples.sick().to_json())
    return path


def fact(opened: Opened, name: str) -> str:
    return opened.locator(f".facts div:has(dt:text-is('{name}')) dd").first.inner_text()


def last_step(opened: Opened) -> int:
    said = fact(opened, "last step")
    return int(said) if said.isdigit() else -1


def wait_for_step(opened: Opened, step: int) -> None:
    for _ in range(MAX_WAIT_MS // 100):
        if last_step(opened) >= step:
            return
        opened.wait_for_timeout(100)
    pytest.fail(f"the page stayed at step {last_step(opened)}")


def test_the_page_follows_a_real_training_to_its_end(visit, serve, tmp_path):
    path = tmp_path / "real.leadline"
    command = [sys.executable, training.__file__, str(path), str(tmp_path / "stop")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        opened = visit(_served_when_readable(serve, path).url)
        wait_for_step(opened, 1)
        wait_for_step(opened, last_step(opened) + 1)
        expect(opened.locator(".state")).to_have_text("live", timeout=MAX_WAIT_MS)
    finally:
        (tmp_path / "stop").touch()
        said, _ = process.communicate()
    expect(opened.locator(".state")).to_have_text("ended", timeout=MAX_WAIT_MS)
    assert last_step(opened) == int(said) - 1
    expect(opened.locator("[data-name=forward_ms] .heat canvas")).to_be_visible()
    expect(opened.locator("#check-section")).to_be_visible()
    assert opened.messages == []
    assert {url.split("/")[2] for url in opened.requests} == {opened.url.split("/")[2]}


def _served_when_readable(serve, path: Path) -> Serving:
    """The file comes when the training has loaded torch, and is there a moment before it is a run."""
    for _ in range(MAX_WAIT_MS // 100):
        try:
            return serve(path)
        except LeadlineError as error:
            last = error
            time.sleep(0.1)
    raise last


def test_the_page_reconnects_to_a_server_that_was_restarted_and_misses_nothing(visit, serve, tmp_path):
    path = tmp_path / "run.leadline"
    writer = begin(path)
    first = serve(path)
    opened = visit(first.url)
    first.stop()
    expect(opened.locator("#link")).to_contain_text("trying again")
    for step in range(10, 15):
        put(writer, step)
    writer.flush()
    serve(path, port=first.port)
    expect(opened.locator("#link")).to_have_text("connected", timeout=MAX_WAIT_MS)
    wait_for_step(opened, 14)
    put(writer, 15)
    writer.close()
    wait_for_step(opened, 15)
    opened.locator("#curves").focus()
    for key in ("Home", *["ArrowRight"] * 12):
        opened.keyboard.press(key)
    expect(opened.locator("#readout")).to_have_text("step 12")  # written while no server was there
    assert [said for said in opened.messages if LOST not in said] == []


def test_zoom_and_pin_survive_updates_and_the_keys_reset_them(visit, serve, tmp_path):
    path = tmp_path / "run.leadline"
    writer = begin(path, 50)
    opened = visit(serve(path).url)
    opened.locator("#curves").focus()
    for key in ("End", "Enter", "Home", "+"):
        opened.keyboard.press(key)
    expect(opened.locator("#reset")).to_be_visible()
    expect(opened.locator("#pinned")).to_have_text("Pinned at step 49")
    put(writer, 50)
    writer.close()
    wait_for_step(opened, 50)
    expect(opened.locator("#reset")).to_be_visible()
    expect(opened.locator("#readout")).to_have_text("step 0")
    expect(opened.locator("[data-name=grad_norm] .label").first).to_have_text("step 49")
    opened.keyboard.press("l")
    expect(opened.locator("[data-name=grad_norm] .label").first).to_have_text("step 50")
    opened.keyboard.press("Escape")
    expect(opened.locator("#reset")).to_be_hidden()
    assert opened.messages == []


def test_zooming_in_shows_the_thinned_steps_of_a_long_run(visit, serve, tmp_path):
    path = tmp_path / "long.leadline"
    begin(path, 6000).close()
    opened = visit(serve(path).url)
    opened.locator("#curves").focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowRight")
    assert opened.locator("#readout").inner_text() != "step 1"
    opened.keyboard.press("Home")
    with opened.expect_response("**/window*"):
        for _ in range(8):
            opened.keyboard.press("+")
    opened.wait_for_timeout(1500)
    assert sum("/window" in url for url in opened.requests) <= 8  # and not again behind every drawing
    opened.keyboard.press("ArrowRight")
    expect(opened.locator("#readout")).to_have_text("step 1")
    assert opened.messages == []


def test_a_click_on_a_map_pins_the_step_under_the_pointer(visit, serve, long_run):
    opened = visit(serve(long_run).url)
    canvas = opened.locator("[data-name=grad_norm] .heat canvas")
    canvas.click(position={"x": canvas.bounding_box()["width"] / 2, "y": 20})
    expect(opened.locator("#pinned")).to_have_text("Pinned at step 50")
    opened.locator("#follow").click()
    expect(opened.locator("#pinned")).to_have_text("")


def test_the_page_shows_events_and_separates_active_from_past_alerts(visit, serve, long_run):
    opened = visit(serve(long_run).url)
    assert "since step 60" in opened.locator("#alerts").inner_text()
    assert opened.locator("#alerts li").count() == 1
    opened.locator("#past summary").click()
    assert "since step 40" in opened.locator("#past ul").inner_text()
    assert opened.locator("#events tr").all_inner_texts() == ["60\tintervention\tclipped"]
    assert opened.get_by_text("One step was sampled").is_visible()
    assert fact(opened, "watch overhead") == "1 % (budget 1 %)"


def test_every_curve_marks_the_steps_since_which_alerts_hold(visit, serve, long_run):
    opened = visit(serve(long_run).url)
    curves = opened.locator("#curves figure").count()
    assert curves > 0
    assert opened.locator("#curves .mark").count() == 2 * curves  # since steps 40 and 60
    assert opened.locator("#curves .mark").first.get_attribute("title").startswith("since step ")


def test_a_check_is_saved_as_a_static_report(visit, serve, long_run):
    opened = visit(serve(long_run).url, accept_downloads=True)
    with opened.expect_download() as caught:
        opened.locator("#export").click()
    assert caught.value.suggested_filename == "leadline-step-50.html"
    assert samples.sick().reason in caught.value.path().read_text()


def test_several_runs_are_drawn_over_each_other(visit, serve, long_run, run):
    opened = visit(serve(long_run, run).url)
    assert opened.locator(".run").count() == 2
    assert opened.locator("[data-name=loss].panel .key").count() == 2
    assert opened.locator("[data-name=grad_norm] .heat canvas").count() == 2
    assert opened.messages == []


@pytest.mark.parametrize("width", [360, 768, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_any_width_in_both_schemes(visit, serve, long_run, width, scheme):
    opened = visit(serve(long_run).url, width=width, color_scheme=scheme)
    assert opened.evaluate(SIDEWAYS) <= 0
    assert opened.messages == []
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_number_of_charts_does_not_grow_with_the_depth(visit, serve, tmp_path):
    counts = []
    for layers in (2, 1500):
        path = tmp_path / f"{layers}.leadline"
        with begin(path, 0) as writer:
            writer.axis("parameters", [f"w{place}" for place in range(layers)])
            for step in range(30):
                writer.put(step, {"loss": 1.0}, {"weight_norm": ("parameters", row(layers, step))})
        opened = visit(serve(path).url)
        counts.append(opened.locator("canvas").count())
        names = opened.locator("[data-name=weight_norm] .rows").all_inner_texts()
        assert names[0].startswith("w0")
        assert names[-1].endswith(f"w{layers - 1}")
        assert opened.messages == []
    assert counts[0] == counts[1]


def test_one_nan_among_many_layers_and_steps_is_visible_on_the_map(visit, serve, tmp_path):
    path = tmp_path / "nan.leadline"
    with begin(path, 0) as writer:
        writer.axis("parameters", [f"w{place}" for place in range(3000)])
        for step in range(200):
            values = row(3000, step)
            if step == 77:
                values[1234] = math.nan
            writer.put(step, {"loss": 1.0}, {"weight_norm": ("parameters", values)})
    for width in (360, 1100):
        opened = visit(serve(path).url, width=width)
        assert opened.evaluate(ALARMED) > 0
        assert opened.get_by_text("NaN or infinity").is_visible()


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>"])
def test_no_name_in_a_run_is_markup(visit, serve, tmp_path, name):
    path = tmp_path / "hostile.leadline"
    with begin(path, 0, model=name) as writer:
        writer.axis("parameters", [name, name])
        writer.put(0, {"loss": 1.0, name: 2.0}, {name: ("parameters", row(2, 0))})
        writer.put(1, {"loss": 1.0, name: 2.0}, {name: ("parameters", row(2, 1))})
    opened = visit(serve(path).url)
    assert opened.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert name in opened.locator(".facts").inner_text()
    assert opened.messages == []


def test_a_single_chart_leaves_room_for_later_ones(visit, serve, tmp_path):
    """Charts come one by one: the first, drawn as wide as the page, would lie over its neighbor for a moment."""
    path = tmp_path / "two.leadline"
    with begin(path, 0) as writer:
        for step in range(2):
            writer.put(step, {"loss": 1.0 + step})
    page = visit(serve(path).url).page
    page.wait_for_selector(".uplot")
    share = "document.querySelector('.uplot').clientWidth / document.querySelector('.panels').clientWidth"
    assert page.evaluate(share) < 0.6
