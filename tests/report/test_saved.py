"""A race and a phase diagram that were saved are read and written again, and what is damaged is refused."""

import json

import pytest

from benchmarks.result_files import load
from leadline.cli.report import saved_kinds
from leadline.errors import SchemaError
from leadline.report.look import Look
from leadline.report.saved import formats_of

RACE = load("race")["cases"]["text"]
PHASE = load("phase")["cases"]["gain"]


@pytest.mark.parametrize(("record", "said"), [(RACE, "At 12 blocks"), (PHASE, "balanced accuracy of 89%")])
def test_what_was_saved_is_written_as_text_as_a_page_and_as_it_was(record, said):
    written = formats_of(json.dumps(record), Look(), saved_kinds())
    assert list(written) == ["text", "json", "html"]
    text = written["text"]()
    assert said in " ".join(text.split())  # lines are broken to the width
    assert text.endswith("\n")
    assert said in " ".join(written["html"]().split())
    again = formats_of(written["json"](), Look(), saved_kinds())
    assert again["json"]() == written["json"]()


@pytest.mark.parametrize(("record", "name"), [(RACE, "data"), (PHASE, "title")])
def test_names_in_a_file_can_neither_steer_the_terminal_nor_the_page(record, name):
    written = formats_of(
        json.dumps({**record, name: "\x1b[2J<script>alert(1)</script>"}), Look(), saved_kinds()
    )
    assert "\x1b" not in written["text"]()
    assert "<script>alert" not in written["html"]()


@pytest.mark.parametrize("record", [RACE, PHASE])
def test_the_verdict_alone_is_one_line(record):
    assert formats_of(json.dumps(record), Look(detail="verdict"), saved_kinds())["text"]().count("\n") == 1


@pytest.mark.parametrize("record", [RACE, PHASE])
def test_what_was_cut_short_is_refused(record):
    text = json.dumps(record)
    with pytest.raises(SchemaError, match="truncated"):
        formats_of(text[: len(text) // 2], Look(), saved_kinds())


@pytest.mark.parametrize("kind", ["race", "phase"])
def test_what_a_newer_version_wrote_is_refused_by_its_version(kind):
    with pytest.raises(SchemaError, match=f"leadline.{kind} version 1. Upgrade leadline"):
        formats_of(json.dumps({"schema": f"leadline.{kind}/2"}), Look(), saved_kinds())


@pytest.mark.parametrize(
    ("record", "change", "said"),
    [
        (RACE, {"tables": [[]]}, "at least one row"),
        (RACE, {"tables": "rezero"}, "tables"),
        (RACE, {"transfers": [{**RACE["transfers"][0], "optima": [0.1]}]}, "one best rate per depth"),
        (RACE, {"base_rate": None}, "base_rate"),
        (PHASE, {"kind": "width"}, "kind"),
        (PHASE, {"reach": [1.0]}, "one reach per value"),
        (PHASE, {"accuracy": [[1.0]] * len(PHASE["depths"])}, "one accuracy per value"),
        (PHASE, {"depths": [0] * len(PHASE["depths"])}, "depths of at least 1"),
        (PHASE, {"values": [], "accuracy": [], "depths": [], "reach": []}, "one row"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(record, change, said):
    with pytest.raises(SchemaError, match=said):
        formats_of(json.dumps({**record, **change}), Look(), saved_kinds())


def test_a_list_without_a_report_is_refused():
    with pytest.raises(SchemaError, match="an empty list"):
        formats_of("[]", Look(), saved_kinds())
