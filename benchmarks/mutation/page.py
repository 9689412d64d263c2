"""The table of mutants in the docs, and why some of them cannot be noticed."""

from __future__ import annotations

from benchmarks.mutation.changes import SAMPLE
from benchmarks.result_files import Results, table

EQUIVALENT: dict[str, str] = {
    "checks/_laws.py severity: 0 -> 1": "cliffs go in the direction of the whole change, so a law changes by more than "
    "7 e-folds and never by 0 to 1",
    "monitor/runfile/tail.py file: 20 -> 21": "bytes after which the tail is stored at once; the "
    "file is the same",
    "monitor/live/server.py file: 15 -> 16": "seconds between two pings; no result depends on them",
    "monitor/runfile/write.py _store_next: seconds / steps -> seconds * steps": "how long the writer of a run rests "
    "between two transactions; the file is the same",
    "readings/symmetry/reading.py describe_generator: each > 0 -> each >= 0": "generators hold no exponent of zero",
    "readings/theory/moments/topk.py select_largest: n > 1 -> n >= 1": "along an axis of length 1, the share "
    "of a field is its second moment, which is the other branch",
    "readings/facts.py _softmax_attention: value.forward.ms > 0 -> value.forward.ms >= 0": "weights of a "
    "softmax sum to one, so their mean square is never zero; where it is NaN, both comparisons are false",
    "readings/residual.py _alpha: 2 -> 3": "torch takes `alpha` by name only, so its place is never read",
}
"""Survivors that compute the same, or differ only in what no result depends on, with the reason."""


def render(results: Results) -> str:
    cases = results["cases"]
    rows = [
        _row(folder, drawn, {key: case for key, case in cases.items() if case["folder"] == folder})
        for folder, drawn in SAMPLE.items()
    ]
    header = ["folder", "mutants run", "equivalent", "noticed at first", "noticed now", "at first", "now"]
    return table(header, [*rows, _row("all", sum(SAMPLE.values()), cases)])


def _row(folder: str, drawn: int, cases: Results) -> list[str]:
    countable = [case for key, case in cases.items() if key not in EQUIVALENT]
    noticed = [sum(case[when] for case in countable) for when in ("first", "noticed")]
    shares = [f"{count / len(countable):.0%}" if countable else "not run" for count in noticed]
    equivalent = len(cases) - len(countable)
    return [folder, f"{len(cases)} of {drawn}", str(equivalent), *map(str, noticed), *shares]
