"""The tables of docs/lab-notes/zoo.md."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.result_files import Results, table
from benchmarks.zoo import training
from benchmarks.zoo.explanations import explanation
from benchmarks.zoo.measure import Cell

STATUSES = ("ran", "refused", "crashed", "too slow", "not built")
VERDICTS = ("trains", "poor", "fails", "undecided")
# Heuristic: one line of a table.
MAX_REASON_CHARACTERS = 110

Cells = dict[str, Cell]


def render(results: Results) -> str:
    """Return all tables in the order of the page."""
    cells: Cells = dict(sorted(results["cases"].items()))
    where = results["machine"]
    return "\n\n".join(
        [
            f"Measured on {where['cpu']}, one thread; torch {where['torch']}, Python {where['python']}.",
            "### How many",
            counts(cells, results.get("exhibits", {})),
            totals(cells),
            "### Every finding at warning or above",
            findings(cells),
            "### Operations without a rule",
            unknown(cells),
            "### Not built, and why",
            not_built(cells),
            "### All that ran",
            all_results(cells),
        ]
    )


def counts(cells: Cells, there_are: dict[str, int]) -> str:
    sources = sorted({name.partition("/")[0] for name in cells})
    rows = [_count_row(each, cells_from(cells, each), there_are.get(each, 0)) for each in sources]
    rows.append(_count_row("**all**", list(cells.values()), sum(there_are.values())))
    return table(["names begin with", "there are", "tried", *STATUSES, *VERDICTS], rows)


def _count_row(name: str, chosen: list[Cell], there_are: int) -> list[str]:
    states = Counter(cell["status"] for cell in chosen)
    verdicts = Counter(cell.get("verdict") for cell in chosen)
    figures = [*(states[each] for each in STATUSES), *(verdicts[each] for each in VERDICTS)]
    return [name, str(there_are or "?"), str(len(chosen)), *map(str, figures)]


def cells_from(cells: Cells, source: str) -> list[Cell]:
    return [cell for name, cell in cells.items() if name.startswith(f"{source}/")]


def totals(cells: Cells) -> str:
    """Return coverage, cost and state changes over all architectures that ran."""
    ran = [cell for cell in cells.values() if cell["status"] == "ran"]
    if not ran:
        return "Nothing has run yet."
    known, ops = sum(cell["known"] for cell in ran), sum(cell["ops"] for cell in ran)
    fully_known = sum(cell["known"] == cell["ops"] for cell in ran)
    changed = [name for name, cell in cells.items() if cell.get("left_behind")]
    return "\n".join(
        [
            f"- Operations: {ops} recorded, {100 * known / ops:.2f} % of them known to the op table; "
            f"all of them in {fully_known} of {len(ran)} models.",
            f"- Time, in plain steps (forward, backward, AdamW): a trace costs "
            f"{middle(cell['trace_ratio'] for cell in ran)}, a whole check with one measured step and a rehearsal "
            f"{middle(cell['check_ratio'] for cell in ran)}.",
            f"- Left as found, bit for bit, after a trace and after a check: {len(ran) - len(changed)} of {len(ran)}"
            + (f"; not: {', '.join(changed)}." if changed else "."),
        ]
    )


def middle(figures: Iterable[float]) -> str:
    low, half, high = statistics.quantiles(list(figures), n=4)
    return f"{half:.1f} at the median ({low:.1f} to {high:.1f} in the middle half)"


def findings(cells: Cells) -> str:
    rows = [
        [
            f"`{name}`",
            code,
            severity,
            f"{escape_markdown(message)}",
            explanation(name, code) or "**not explained**",
        ]
        for name, cell in cells.items()
        for code, severity, _, message in cell.get("findings", ())
    ]
    return table(["architecture", "rule", "severity", "what it says", "why"], rows) if rows else "None."


def unknown(cells: Cells) -> str:
    op_counts = Counter(name for cell in cells.values() for name in cell.get("unknown", ()))
    if not op_counts:
        return "None."
    return table(["op", "models"], [[f"`{name}`", str(count)] for name, count in op_counts.most_common()])


def not_built(cells: Cells) -> str:
    rows = [
        [f"`{name}`", cell["status"], escape_markdown(cell["reason"][:MAX_REASON_CHARACTERS])]
        for name, cell in cells.items()
        if cell["status"] != "ran"
    ]
    return table(["architecture", "status", "what its package said"], rows) if rows else "None."


def all_results(cells: Cells) -> str:
    rows = [
        [
            f"`{name}`",
            f"{cell['parameters'] / 1e6:.2f} M",
            str(cell["ops"]),
            f"{100 * cell['known'] / max(cell['ops'], 1):.0f} %",
            str(cell["blocks"]),
            cell["verdict"],
            f"{cell['trace_ratio']:.1f}",
            f"{cell['check_ratio']:.0f}",
        ]
        for name, cell in cells.items()
        if cell["status"] == "ran"
    ]
    header = [
        "architecture",
        "parameters",
        "ops",
        "known",
        "blocks",
        "verdict",
        "trace, steps",
        "check, steps",
    ]
    return table(header, rows)


def escape_markdown(text: str) -> str:
    """Return text from other packages, escaped for a Markdown table."""
    return (
        text.replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("`", "'")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )


MARKS: dict[str, Callable[[Results], str]] = {"zoo": render, "zoo_training": training.render}
