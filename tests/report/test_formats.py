"""Every format is a function of the record, and JSON loses nothing."""

import json
import math

import pytest

from leadline.report import Report
from leadline.report.formats import FORMATS
from leadline.report.look import Look
from report import samples


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_writes_whole_lines(form):
    assert FORMATS[form]([samples.broken()], Look()).endswith("\n")


def test_json_gives_the_same_report_back():
    text = FORMATS["json"]([samples.broken()], Look())
    again = Report.from_json(text)
    assert FORMATS["json"]([again], Look()) == text
    assert math.isnan(again.profile.blocks[2].forward_ms)
    assert again.profile.blocks[1].forward_ms is None


def test_json_has_the_keys_that_were_promised():
    data = json.loads(FORMATS["json"]([samples.sick()], Look()))
    assert {"schema", "verdict", "findings", "profile", "coverage"} <= data.keys()
    assert {"name", "forward_ms", "backward_ms"} <= data["profile"]["blocks"][0].keys()


def test_how_json_looks_does_not_depend_on_the_terminal():
    looks = [Look(), Look(width=200, detail="verdict", color=True)]
    assert len({FORMATS["json"]([samples.sick()], look) for look in looks}) == 1
