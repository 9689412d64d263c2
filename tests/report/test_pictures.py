"""One picture of a verdict or of learning rates: it says what the record says, as SVG and as PNG."""

import math
import sys
from xml.etree import ElementTree

import pytest

from leadline.errors import InputError
from leadline.records import RateScan
from leadline.report.pictures import key_number
from tests.support import reports as samples
from tests.support.reports import rate_scan

NAMES = ("sick", "healthy", "broken", "reviewed", "thousand")


def texts(path):
    """The words of an SVG file, as a parser of XML reads them."""
    return " ".join(each.text for each in ElementTree.parse(path).iter() if each.tag.endswith("text"))


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_of_a_report_is_svg_with_the_verdict_and_the_model(tmp_path, name):
    report = getattr(samples, name)()
    report.to_svg(tmp_path / "verdict.svg")
    shown = texts(tmp_path / "verdict.svg")
    assert ("TRAINS" in shown) == (report.verdict in ("trains", "poor")) or "UNDECIDED" in shown
    assert report.profile.model in shown
    assert "nan" not in (tmp_path / "verdict.svg").read_text()


@pytest.mark.parametrize("name", samples.HOSTILE_NAMES, ids=range(len(samples.HOSTILE_NAMES)))
def test_no_name_breaks_a_picture(tmp_path, name):
    samples.hostile(name).to_svg(tmp_path / "verdict.svg")
    assert texts(tmp_path / "verdict.svg")


def test_a_png_has_the_size_of_the_picture_and_is_not_empty(tmp_path):
    image = pytest.importorskip("PIL.Image")
    samples.sick().to_png(tmp_path / "verdict.png")
    with image.open(tmp_path / "verdict.png") as picture:
        assert picture.size == (1920, 1008)
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 20


def test_without_pillow_a_png_is_refused_and_svg_is_offered(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"(?s)pip install '\.\[png\]'.*SVG"):
        samples.sick().to_png(tmp_path / "verdict.png")


def test_the_one_number_is_that_of_the_worst_finding_and_never_a_nan():
    assert key_number(samples.sick()).value == "0.154"
    broken = key_number(samples.broken())
    assert broken is None or "NaN" not in broken.value


def test_a_scan_knows_whether_the_rate_is_safe_and_where_one_step_is_lowest():
    assert not rate_scan().is_safe
    assert rate_scan(lr=0.005).is_safe
    assert not rate_scan(safe_lr=None).is_safe
    assert rate_scan().best == (0.01, 1.5)
    assert rate_scan(losses=(None,) * 5).best is None
    assert "10 times the safe rate" in rate_scan().sentence


@pytest.mark.parametrize("changes", [{}, {"safe_lr": None}, {"losses": (None,) * 5}, {"lr": 1e-9}])
def test_a_picture_of_rates_is_drawn_also_where_losses_are_missing(tmp_path, changes):
    rate_scan(**changes).to_svg(tmp_path / "rates.svg")
    assert "learning rate" in texts(tmp_path / "rates.svg")


def test_a_line_that_leaves_the_frame_is_cut_at_its_edge(tmp_path):
    rate_scan().to_svg(tmp_path / "rates.svg")
    paths = [each.get("d") for each in ElementTree.parse(tmp_path / "rates.svg").iter() if each.get("d")]
    heights = [float(point.split()[1]) for d in paths for point in d.removeprefix("M").split("L")]
    assert all(0 <= y <= 504 and math.isfinite(y) for y in heights)


def test_a_scan_survives_json():
    assert RateScan.from_json(rate_scan().to_json()) == rate_scan()
