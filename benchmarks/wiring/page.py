"""The tables of docs/lab-notes/wiring.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.result_files import Results, table
from benchmarks.wiring import problems  # noqa: F401  (registers the programs)
from benchmarks.wiring.known import INSTALLED, KNOWN
from benchmarks.wiring.problem import Part
from benchmarks.wiring.scores import Row, Score, rows, score


def render(results: Results) -> str:
    """Return the figures, the costs, the known bugs and every planted bug."""
    found = rows(results["cases"])
    return "\n\n".join(
        [
            "### How many are named",
            _figures(found, rows(results.get("first", {}))),
            "### By finding",
            _by_group("finding", found, lambda row: row.bug.expected[0] if row.bug else ""),
            "### By kind of network",
            _by_group("network", found, lambda row: row.problem.network),
            "### What it costs",
            _costs(results.get("cost", {})),
            "### Published models with known bugs",
            _known(results.get("known", {})),
            "### Every planted bug",
            table(
                ["program", "bug", "part", "expected", "said", "right"],
                [_line(row) for row in found if row.bug],
            ),
        ]
    )


PARTS: tuple[Part, ...] = (
    "sixth set",
    "fifth set",
    "fourth set",
    "third set",
    "second set",
    "held out",
    "calibration",
)
SPLIT_PART: Part = "sixth set"
"""The set of which only one half was looked at."""
FRESH_PARTS: tuple[Part, ...] = PARTS[:5]
"""Sets whose first answers are kept, because they came before anything was changed by them."""


def _figures(found: list[Row], first: list[Row]) -> str:
    header = [
        "part",
        "bugs",
        "named",
        "with the place",
        "named without probes",
        "verdict right",
        "silent twins",
    ]
    lines = []
    for part in PARTS:
        if part in FRESH_PARTS:
            lines.append(
                [f"{part}, first answers", *_counts(score(row for row in first if row.part == part))]
            )
        if part == SPLIT_PART:
            lines += [
                [f"{part}, {name}", *_counts(score(row for row in rows if _is_unseen(row)))]
                for name, rows in (("unseen half, first answers", first), ("unseen half", found))
            ]
        lines.append([part, *_counts(score(row for row in found if row.part == part))])
    return table(header, lines)


def _is_unseen(row: Row) -> bool:
    """Whether it belongs to the half of the split set that nobody looked at while rules were changed."""
    return row.part == SPLIT_PART and row.problem.half == "held out"


def _counts(figures: Score) -> list[str]:
    return [
        str(figures.bugs),
        *(
            f"{part} ({100 * part / max(figures.bugs, 1):.0f} %)"
            for part in (figures.named, figures.located, figures.named_by_baseline, figures.right_verdicts)
        ),
        f"{figures.silent} of {figures.twins}",
    ]


def _by_group(title: str, found: list[Row], group_of: Callable[[Row], str]) -> str:
    groups: dict[str, list[Row]] = {}
    for row in found:
        if row.bug is not None:
            groups.setdefault(group_of(row), []).append(row)
    lines = []
    for name, group in sorted(groups.items()):
        figures = [score(row for row in group if row.part == part) for part in PARTS]
        lines.append([name, *(f"{each.located} of {each.bugs}" for each in figures)])
    return table([title, f"{PARTS[0]}: named with the place", *PARTS[1:]], lines)


def _costs(costs: dict[str, dict[str, Any]]) -> str:
    header = [
        "program",
        "check without probes",
        "probes",
        "forward passes",
        "memory of one step",
        "trace",
        "check without probes",
        "check",
    ]
    return table(
        header,
        [
            [
                name,
                f"{each['check_in_steps']} steps",
                f"{each['probes_in_steps']} steps",
                str(each["passes"]),
                *_memory(each),
            ]
            for name, each in costs.items()
        ],
    )


def _memory(figures: dict[str, Any]) -> list[str]:
    if "step_megabytes" not in figures:
        return ["not measured"] * 4
    ways = ("pass", "check", "probed")
    return [
        f"{figures['step_megabytes']} MB",
        *(f"{figures[f'{way}_memory_in_steps']} × one step" for way in ways),
    ]


def _known(answers: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, answer in answers.items():
        model, _, version = name.partition(" ")
        alarms = [each["name"] for each in answer.get("findings", ()) if each["severity"] != "info"]
        wanted = "silence" if version == INSTALLED else KNOWN[model].expected
        is_right = alarms == [] if version == INSTALLED else wanted in alarms
        said = answer.get("error") or ", ".join(dict.fromkeys(alarms)) or "silence"
        lines.append(
            [
                model,
                answer.get("version", version),
                wanted,
                said,
                "yes" if is_right and "error" not in answer else "no",
            ]
        )
    return table(["model", "transformers", "expected", "said", "right"], lines)


def _line(row: Row) -> list[str]:
    assert row.bug is not None
    said = dict.fromkeys(each["name"] for each in row.answer["findings"] if each["severity"] != "info")
    mark = "yes" if row.is_located else "place missing" if row.is_named else "no"
    return [
        row.problem.name,
        row.bug.name,
        row.part,
        " or ".join(row.bug.expected) + (" (a note)" if row.bug.note else ""),
        ", ".join([row.answer["verdict"], *said]),
        mark,
    ]
