"""The main figure of every benchmark in one table, each with a link to its page; built with the docs.

Nothing is measured here: the stored results are read, so the table is always up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from benchmarks.atlas.scores import JUDGES, OWN_JUDGE, Judge, Row
from benchmarks.atlas.scores import rows as atlas_rows
from benchmarks.atlas.scores import score as atlas_score
from benchmarks.first_hour.scores import rows as variant_rows
from benchmarks.first_hour.scores import same_verdicts
from benchmarks.first_hour.verdict import ONE_BATCH, SEVERAL_BATCHES
from benchmarks.result_files import Results, load, table

Figure = tuple[str, str, str, str]
"""The question, the answer, the page and the script."""

INTRODUCTION = """# Figures

Every number that these pages quote comes from a script in `benchmarks/` and is stored in `benchmarks/results/`; a test
compares the two. This is the index. The page of each figure says how it was measured, and what it does not mean.

"""


def page() -> str:
    return INTRODUCTION + table(
        ["question", "figure", "where", "script"], [list(_row(each)) for each in figures()]
    )


def figures() -> Iterator[Figure]:
    """Yield the figures. Benchmarks without a stored result are left out."""
    for make in MAKERS:
        yield from (figure for figure in make() if figure[1])


def _row(figure: Figure) -> Iterator[str]:
    question, answer, where, script = figure
    yield from (
        question,
        answer,
        f"[{where.rpartition('/')[2]}](../{where}.md)",
        f"`python -m benchmarks.{script}`",
    )


def _atlas() -> Iterator[Figure]:
    """Yield figures of the families that were held out as a whole."""
    found = [row for row in atlas_rows(load("atlas_truth"), load("atlas")) if row.half == "held out"]
    if not found:
        return
    own = atlas_score(found, JUDGES[OWN_JUDGE])
    best = max(atlas_score(found, judge).balanced for name, judge in JUDGES.items() if name != OWN_JUDGE)
    where, script = "lab-notes/atlas", "atlas"
    yield "How often is the verdict right? (kinds held out, balanced)", _percent(own.balanced), where, script
    yield "How often would the best naive judge be?", _percent(best), where, script
    yield "How many networks that train are called sick?", _percent(own.false_alarm_rate), where, script


def _first_hour() -> Iterator[Figure]:
    """Yield figures of the variants of a small GPT, both ways of passing the loss counted."""
    found = variant_rows(load("first_hour"), load("first_hour_truth"))
    held_out = [row for row in found if row.half == "held out" and row.counted]
    if not held_out:
        return
    same, cases = same_verdicts(found)
    where, script = "lab-notes/first-hour", "first_hour"
    for batches, ways in (("eight batches", SEVERAL_BATCHES), ("one batch", ONE_BATCH)):
        right = sum(row.right(way) for row in held_out for way in ways)
        yield (
            f"How often is the verdict on a changed GPT right? (held out, {batches})",
            _percent(right / (len(ways) * len(held_out))),
            where,
            script,
        )
    yield "How often is it the same with the loss inside and outside?", f"{same} of {cases}", where, script


def _repairs() -> Iterator[Figure]:
    for name, question in (
        ("repair_held_out", "How many failing networks are repaired? (held out)"),
        ("repair_baseline", "How many by AUTOTRAINER's remedies in its order?"),
    ):
        cases = load(name)["cases"].values()
        if not cases:
            continue
        fixed = sum(each["label"] == "reached" for each in cases)
        worse = sum(each["worse"] for each in cases)
        yield (
            question,
            f"{fixed} of {len(cases)}, {worse} made worse",
            "lab-notes/repair",
            name.removesuffix("_held_out"),
        )


def _costs() -> Iterator[Figure]:
    traced = [each["ratio"]["median"] for key, each in _cases("trace") if key.startswith("time | ")]
    yield "What does a trace cost, in plain passes?", _between(traced), "lab-notes/performance", "trace"
    steps = [each["reading"]["median"] for _, each in _cases("update")]
    yield "What does reading one step cost, in plain steps?", _between(steps), "explanation/update", "update"
    budget = [each["ratio"] for key, each in _cases("watch") if key.startswith("budget | default budget")]
    yield (
        "How long is a step under the watch at its default budget, in plain steps?",
        _between(budget),
        "reference/watch",
        "watch",
    )


def _sizes() -> Iterator[Figure]:
    llama = load("weightless")["cases"].get("Llama, 80 layers, 70 billion parameters")
    answer = f"{llama['total_s']:.0f} s, {llama['peak_gb']:.2f} GB" if llama else ""
    yield (
        "How long does a 70-billion-parameter configuration take?",
        answer,
        "explanation/weightless",
        "weightless",
    )
    report = load("page")["cases"].get("Transformer, 1000 blocks")
    answer = f"{report['kilobytes']} kB, first paint {report['paint_ms']} ms" if report else ""
    yield "How large is the page of a thousand blocks?", answer, "reference/report", "report_page"


def _depth() -> Iterator[Figure]:
    runs = [
        run
        for run in load("thousand_layers")["runs"]
        if run["depth"] == 1000 and run.get("optimizer", "adamw") == "adamw"
    ]
    for scheme in ("post", "residual-linear"):
        ends = [run["held_out"][-1][-1] for run in runs if run["scheme"] == scheme]
        answer = f"{median(ends):.2f} nats, a guess {runs[0]['unigram']:.2f}"
        yield (
            f"What does a language model of 1000 blocks reach? (`{scheme}`)",
            answer,
            "reference/nn",
            "thousand_layers",
        )


def _stories() -> Iterator[Figure]:
    for name, question in (
        ("incidents", "How many reported failures are named and improved?"),
        ("applications", "How many applications score better repaired?"),
    ):
        cases = [each for _, each in _cases(name)]
        if not cases:
            continue
        good = sum(_improved(each) for each in cases)
        yield question, f"{good} of {len(cases)}", f"tutorial/{name}", name


def _improved(case: dict[str, Any]) -> bool:
    if "score" in case:
        return bool(case["score"][1] > case["score"][0])
    return case["after"] is not None and (case["before"] is None or case["after"] < case["before"])


def accuracy() -> str:
    """Return the table of the README: Leadline and naive judges on kinds of networks that were held out."""
    truth = load("atlas_truth")
    eight, one = (
        [row for row in atlas_rows(truth, load(answers)) if row.half == "held out"]
        for answers in ("atlas", "atlas_one_batch")
    )
    lines = [
        _accuracy_line("**Leadline**, with eight batches", eight, JUDGES[OWN_JUDGE]),
        _accuracy_line("**Leadline**, with one batch", one, JUDGES[OWN_JUDGE]),
        *(_accuracy_line(name, eight, judge) for name, judge in JUDGES.items() if name != OWN_JUDGE),
    ]
    return table(
        ["kinds of networks held out", "balanced accuracy", "failures caught", "false alarms"], lines
    )


def _accuracy_line(name: str, rows: list[Row], judge: Judge) -> list[str]:
    got = atlas_score(rows, judge)
    caught, alarms = f"{got.caught} of {got.failed}", f"{got.false_alarms} of {got.reached}"
    return [name, _percent(got.balanced), caught, alarms]


def monitor_costs(results: Results) -> str:
    """Return the table of step times with a monitor that records everything at every step, over a plain step."""
    found: dict[str, dict[str, str]] = {}
    for key, each in results["cases"].items():
        kind, way, network = key.split(" | ")
        if kind == "every step":
            cell = "fails" if "error" in each else f"{each['ratio']['median']:.2f}"
            found.setdefault(way, {})[network] = cell
    networks = list(dict.fromkeys(network for ways in found.values() for network in ways))
    rows = [[way, *(ways.get(network, "") for network in networks)] for way, ways in found.items()]
    return table(["recorded by", *networks], rows)


def _cases(name: str) -> list[tuple[str, dict[str, Any]]]:
    return list(load(name)["cases"].items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _between(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else ""


MAKERS: tuple[Callable[[], Iterator[Figure]], ...] = (
    _atlas,
    _first_hour,
    _repairs,
    _costs,
    _sizes,
    _depth,
    _stories,
)
