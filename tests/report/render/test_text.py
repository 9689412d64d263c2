"""The page: what is on it, that it fits, and that no name can break it."""

import math
import re
from pathlib import Path

import pytest
import rich
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from leadline.records import Rehearsal, Source, Stream
from leadline.records.report import Report
from leadline.report.layout import MAX_PAGE_LINES
from leadline.report.look import Look
from leadline.report.pages import page_of
from leadline.report.render.text import render
from tests.support import reports as samples

GOLDEN = Path(__file__).parents[1] / "golden"
REPORTS = {name: getattr(samples, name)() for name in ("sick", "healthy", "broken", "reviewed", "whole")}


def page(report: Report, width: int = 80, **choices) -> str:
    return render(page_of(report), Look(width=width, **choices))


TRIED = Rehearsal(losses=(3.92, 3.75, 3.60), constant=3.80)
EVERY = {**REPORTS, "hostile": samples.hostile(), "thousand": samples.thousand()}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_the_one_that_was_looked_at(name, width):
    """After a change that is meant: delete the file, run once, and look at what it wrote before committing it."""
    golden = GOLDEN / f"{name}-{width}.txt"
    if not golden.exists():
        golden.write_text(page(REPORTS[name], width))
        pytest.fail(f"wrote {golden.name}: look at it, then run again")
    assert page(REPORTS[name], width) == golden.read_text()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", EVERY)
def test_a_page_has_at_most_forty_lines_and_none_is_too_wide(name, width):
    lines = page(EVERY[name], width).splitlines()
    assert len(lines) <= MAX_PAGE_LINES
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("detail", ["verdict", "page", "everything"])
def test_without_colour_there_is_no_control_character(name, detail):
    assert page(EVERY[name], detail=detail).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", EVERY)
def test_colour_changes_no_word(name):
    coloured = page(EVERY[name], color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == page(EVERY[name])


def test_markup_in_a_name_is_shown_and_not_obeyed():
    text = page(samples.hostile(), 120, detail="everything")
    assert r"a[bold red]b[/]\x1b[31m" in text
    assert "{link=x}" in text


@pytest.mark.parametrize(
    ("verdict", "title"),
    [
        ("trains", "TRAINS"),
        ("poor", "TRAINS POORLY"),
        ("fails", "DOES NOT TRAIN"),
        ("undecided", "UNDECIDED"),
    ],
)
def test_the_page_opens_with_the_verdict(verdict, title):
    report = samples.report(samples.profile([1.0], [1.0]), samples.finding(), verdict=verdict)
    assert page(report).startswith(f"{title}: ")
    assert page(report).startswith(page(report, detail="verdict"))


def test_the_headline_names_the_number_of_the_worst_finding():
    mild = samples.finding(code="F101", severity="warning", message="activations grow 3x a block")
    report = samples.report(samples.profile([1.0], [1.0]), mild, samples.finding())
    assert page(report, detail="verdict") == "DOES NOT TRAIN: the gradient keeps 0.154 of its power a block\n"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backward_ran": False}, "backward pass did not run"),
        ({"blocks": ()}, "no path of weight layers"),
        ({}, "too few"),
    ],
)
def test_an_undecided_report_says_what_is_missing(changes, reason):
    report = samples.report(samples.profile([1.0], [1.0], **changes), verdict="undecided")
    assert reason in page(report)


def test_a_healthy_verdict_comes_with_its_evidence():
    assert "over 24 blocks the signal changes ×1.05 per block, its gradient ×1.00" in page(REPORTS["healthy"])


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 0.0])
def test_a_gain_over_values_that_have_none_is_not_invented(value):
    row = next(
        line
        for line in page(
            samples.report(samples.profile([1.0, value, value, 1.0], [1.0, 1.0, 1.0, 1.0]))
        ).splitlines()
        if line.startswith("forward")
    )
    assert row.split()[-1] == "n/a"


def test_gains_are_in_the_direction_in_which_the_signal_runs():
    report = samples.report(samples.profile([1.0, 2.0, 4.0, 9.0], [1.0, 10.0, 100.0, 900.0]))
    rows = [
        line.split()[-1] for line in page(report).splitlines() if line.startswith(("forward", "backward"))
    ]
    assert rows == ["×2.00", "×0.100"]


def test_a_gain_counts_the_blocks_that_were_not_measured():
    report = samples.report(samples.profile([1.0, None, 4.0, 9.0], [1.0, None, None, 9.0]))
    rows = [
        line.split()[-1] for line in page(report).splitlines() if line.startswith(("forward", "backward"))
    ]
    assert rows == ["×2.00", "n/a"]


def test_every_severity_is_counted_and_the_worst_comes_first():
    text = page(REPORTS["broken"])
    assert "3 errors, 3 warnings, 3 notes" in text
    assert re.findall(r"^  (error|warning|info) ", text, re.M)[:3] == ["error", "error", "error"]


@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_worst_finding_is_named_however_full_the_page_is(width):
    assert re.search(r"^  error    B201", page(samples.hostile(), width), re.M)


def test_what_does_not_fit_is_counted_and_verbose_shows_it():
    short, long = page(REPORTS["broken"]), page(REPORTS["broken"], detail="everything")
    hidden = int(re.search(r"and (\d+) further finding", short)[1])
    notes = re.search(r"notes: (.*?); see -v", " ".join(short.split()))[1]
    shown = len(re.findall(r"^  (?:error|warning) +F10\d gradient-decay", short, re.M))
    assert shown + hidden + len(re.findall(r"F10\d", notes)) == 9
    assert len(re.findall(r"F10\d gradient-decay", long)) == 9
    assert "further" not in long
    assert all(f"unknown op {i}" in long for i in range(6))


def test_verbose_lists_every_block():
    text = page(samples.thousand(), detail="everything")
    assert all(f"layers.{i} " in text for i in range(1000))


def test_a_report_without_any_block_can_be_shown():
    report = samples.report(samples.profile([], [], streams=()), verdict="undecided")
    assert "depth      no blocks" in page(report)
    assert page(report, detail="everything")


def test_the_next_command_fits_the_verdict():
    assert "next       leadline explain B201" in page(REPORTS["sick"])
    assert "leadline fix" in page(replace(REPORTS["sick"], target="train.py:make"))
    healthy = replace(REPORTS["healthy"], target="train.py:make")
    assert "next       leadline check train.py:make -v   shows every measurement" in page(healthy)
    assert "leadline fix" not in page(healthy)
    undecided = samples.report(samples.profile([1.0], [1.0]), verdict="undecided", target="train.py:make")
    assert "next       leadline check train.py:make -v   lists everything that was not" in page(undecided)


@pytest.mark.parametrize("name", EVERY)
def test_no_command_has_a_placeholder_for_the_target(name):
    assert "TARGET" not in page(EVERY[name])
    assert "TARGET" not in page(replace(EVERY[name], verdict="undecided", findings=()))


def test_str_is_the_plain_page_at_eighty_columns():
    assert str(REPORTS["sick"]) + "\n" == page(REPORTS["sick"])


def test_repr_is_one_short_line():
    assert repr(REPORTS["sick"]) == "<Report of 'Sequential': fails, findings=1, blocks=60>"


def test_rich_prints_the_page_as_wide_as_its_console(capsys):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(REPORTS["sick"])
    assert capture.get() == page(REPORTS["sick"], 100)
    rich.print(REPORTS["healthy"])
    assert capsys.readouterr().out.startswith("TRAINS: ")


def test_streams_beyond_the_second_are_counted_and_shown_on_demand():
    streams = tuple(Stream(input=name, blocks=3) for name in "abcd")
    report = samples.report(replace(samples.profile([1.0] * 3, [1.0] * 3), streams=streams))
    assert "and 2 further streams: -v shows all" in page(report)
    assert "further" not in page(report, detail="everything")


LONG_CAUSE = (
    "the gradient loses 98 % of its power per block: only 5.5e-50 of it survives from layer 58 back to layer 0; 72 % "
    "of the change comes from the slope of sigmoid (0.0599 per layer, at most 0.0625), 28 % from the weights "
    "(0.334 per layer), and none of it from the norms, because there are none between the first and the last layer, so "
    "that nothing restores the scale which the activation takes away"
)
LONG_ACTION = (
    "Replace sigmoid with `nn.ReLU()` in every block, initialize with `nn.init.kaiming_normal_(layer.weight, "
    'nonlinearity="relu")`, and put `nn.LayerNorm(width)` before each of them or add a skip connection around it.'
)


def test_cause_place_and_action_are_whole_on_the_first_screen_of_a_small_terminal():
    finding = samples.finding(
        message=LONG_CAUSE,
        action=LONG_ACTION,
        where="transformer.h.58.mlp.c_proj … transformer.h.0.mlp.c_proj",
    )
    sources = {"transformer.h.58.mlp.c_proj": Source(file="src/models/gpt.py", line=41)}
    report = replace(samples.report(samples.profile([1.0] * 9, [1.0] * 9), finding), sources=sources)
    screen = " ".join(" ".join(page(report).splitlines()[:24]).split())
    assert LONG_CAUSE in screen
    assert LONG_ACTION in screen
    assert "src/models/gpt.py:41" in screen
    assert re.search(r"58\S*c_proj … .*0\S*c_proj", screen)


def test_a_layer_that_is_named_by_a_number_is_called_a_layer():
    report = samples.report(samples.profile([1.0], [1.0]), samples.finding(where="58 … 0"))
    assert "B201 gradient-decay  layers 58 … 0" in page(report)


def test_notes_take_one_line_and_verbose_shows_them():
    notes = [
        samples.finding(code=code, name=name, severity="info", message=f"{name} was measured")
        for code, name in (("W601", "inert-decay"), ("W604", "decayed-gains"))
    ]
    report = samples.report(samples.profile([1.0], [1.0]), *notes, verdict="trains")
    assert "findings   2 notes: W601 inert-decay, W604 decayed-gains; see -v" in page(report)
    assert "was measured" not in page(report)
    assert "inert-decay was measured" in page(report, detail="everything")


def test_a_note_is_not_offered_a_fix_or_an_explanation_before_the_details():
    note = samples.finding(severity="info")
    report = samples.report(samples.profile([1.0], [1.0]), note, verdict="trains", target="train.py:make")
    commands = page(report).partition("next ")[2]
    assert "leadline check train.py:make -v" in commands
    assert "fix" not in commands


def test_symmetry_and_theory_are_shown_on_demand():
    assert "symmetry " not in page(REPORTS["whole"])
    assert "symmetry " in page(REPORTS["whole"], detail="everything")
    assert "theory " not in page(REPORTS["whole"])
    assert "theory     " in page(REPORTS["whole"], detail="everything")


def test_a_model_whose_first_steps_were_tried_is_judged_by_what_they_did():
    rehearsed = samples.profile([1.0, 0.003, 0.005], [1e-11, 1e-8, 1e-7], rehearsal=TRIED)
    headline = page(samples.report(rehearsed, verdict="trains"), 120, detail="verdict")
    assert "2 steps on this batch took the loss from 3.92 to 3.60, below the 3.80 of a constant" in headline
    assert "×" not in headline


def test_one_change_of_the_signal_is_not_called_a_rate():
    report = samples.report(samples.profile([1.0, 0.003, 0.005], [1e-11, 1e-8, 1e-7]), verdict="trains")
    rows = [
        line.split()[-1] for line in page(report).splitlines() if line.startswith(("forward", "backward"))
    ]
    assert rows == ["n/a", "n/a"]
    assert "per block" not in page(report, detail="verdict")


def test_what_to_do_follows_what_was_measured():
    report = samples.report(samples.profile([1.0], [1.0]), samples.finding(action="Use He initialization."))
    lines = page(report).splitlines()
    message = next(place for place, line in enumerate(lines) if "58 blocks earlier" in line)
    assert lines[message + 1] == f"{'':11}→ Use He initialization."


def test_a_table_drops_its_optional_columns_where_there_is_no_room():
    theory = {"forward_ms_predicted": 1.0, "backward_ms_predicted": 1.0}
    blocks = tuple(samples.block(f"layers.{i}", 1.0, 1.0, **theory) for i in range(3))
    report = samples.report(replace(samples.profile([1.0], [1.0]), blocks=blocks))
    assert "theory" in page(report, 80, detail="everything")
    assert "theory" not in page(report, 50, detail="everything")
