"""Proof that a refactor changed wording at most: the results of many fixed cases, stored before and compared after.

python -m benchmarks.unchanged store FILE      runs every case and writes the results (gzip if FILE ends with .gz)
python -m benchmarks.unchanged compare FILE    runs every case again and prints each difference from FILE
python -m benchmarks.unchanged diff A B        compares two stored files and runs nothing

`--only GROUP ...` selects groups of cases; `unchanged_cases.py` defines them. `--strict` fails on additions too.

A difference is a line "group/case: path: old -> new", and the exit code is then 1. An entry that only the new results
have is a line that begins with "added", and does not fail without `--strict`. Numbers, names, codes and structure have
to be equal: whole numbers exactly, floats to nine digits. Free text, places in the source and wall-clock times are not
compared. A baseline is valid for one machine and one set of installed packages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

TOLERANCE = 1e-9  # relative, of floats
SEED = 0
TEXT, PLACE = "<text>", "<place>"

NAME = r"[\w.:\[\]/<>*+%#$-]+"
KEPT = re.compile(rf"{NAME}|[A-Z]\d{{3}} {NAME}|not run|along the step")  # a name, code and name, states
LAYERS = re.compile(rf"(?:{NAME})?(?:(?:, | … |: ){NAME})*")
PATH = re.compile(r"\w*[.#_\d][\w.#]*")  # what looks like the path of a module or parameter
WHERE = {"anchored", "fullyQualifiedName", "where"}
WORDING = {
    "description", "forecast", "headline", "help", "justification", "markdown", "message", "note", "notes",
    "page", "reason", "summary", "text", "title", "what", "why",
}  # fmt: skip
PLACES = {"file", "line", "startLine", "uri"}
DROPPED = {"leadline", "overhead", "started", "time", "updated"}  # the version, and wall-clock times

Results = dict[str, dict[str, Any]]
"""By group and case, in the form that `normalized` makes."""
Cases = Iterator[tuple[str, Callable[[], Any]]]


class Difference(NamedTuple):
    """One place at which two results differ."""

    kind: Literal["changed", "removed", "added"]
    path: str
    old: Any = None
    new: Any = None


def normalized(data: Any, key: str = "") -> Any:
    """The data without what a refactor may change: free text, places in the source, times."""
    if isinstance(data, dict):
        return {name: normalized(value, name) for name, value in data.items() if not _is_dropped(name)}
    if isinstance(data, list | tuple):
        return [normalized(value, key) for value in data]
    if key in PLACES:
        return None if data is None else PLACE
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return _kept_text(data, key) if isinstance(data, str) else data


def _is_dropped(key: str) -> bool:
    return key in DROPPED or key.endswith("seconds")


def _kept_text(text: str, key: str) -> str:
    """An identifier as it is; of other text only that it is there, and the layers it names if it says where."""
    if not text or (key in WHERE and LAYERS.fullmatch(text)):
        return text
    if key in WHERE:
        return " ".join((TEXT, *PATH.findall(text)))
    return text if key not in WORDING and KEPT.fullmatch(text) else TEXT


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Every place at which `new` differs from `old`, both of them in the form that `normalized` makes."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            below = _below(path, name)
            if name in new:
                yield from differences(value, new[name], below)
            else:
                yield Difference("removed", below, old=value)
        yield from (Difference("added", _below(path, name), new=new[name]) for name in new if name not in old)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Difference("changed", _below(path, "length"), len(old), len(new))
        for index, (left, right) in enumerate(zip(old, new, strict=False)):
            yield from differences(left, right, f"{path}[{index}]")
    elif not _is_same(old, new):
        yield Difference("changed", path, old, new)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_same(old: Any, new: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (old, new))
    if numbers and (isinstance(old, float) or isinstance(new, float)):
        return math.isclose(old, new, rel_tol=TOLERANCE)
    return type(old) is type(new) and bool(old == new)


def compared(old: Results, new: Results) -> Iterator[tuple[str, Difference]]:
    """The differences of all cases, each with the name of its case; a case that is gone is a difference too."""
    for group in {**old, **new}:
        before, after = old.get(group, {}), new.get(group, {})
        for case in {**before, **after}:
            name = f"{group}/{case}"
            if case not in after:
                yield name, Difference("removed", "case", old=TEXT)
            elif case not in before:
                yield name, Difference("added", "case", new=TEXT)
            else:
                yield from ((name, each) for each in differences(before[case], after[case]))


def line_of(name: str, difference: Difference) -> str:
    """The difference as it is printed."""
    path = difference.path or "value"
    if difference.kind == "added":
        return f"added {name}: {path}: {_short(difference.new)}"
    new = "(removed)" if difference.kind == "removed" else _short(difference.new)
    return f"{name}: {path}: {_short(difference.old)} -> {new}"


def _short(value: Any, most: int = 100) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most]}..."


def tell(old: Results, new: Results, *, strict: bool) -> int:
    """Print each difference, and return the exit code."""
    count: Counter[str] = Counter()
    for name, difference in compared(old, new):
        count[difference.kind] += 1
        print(line_of(name, difference))
    cases = sum(map(len, new.values()))
    told = ", ".join(f"{count[kind]} {kind}" for kind in ("changed", "removed", "added"))
    say(f"{cases} cases compared: {told}")
    return int(bool(count["changed"] or count["removed"] or (strict and count["added"])))


def run(groups: dict[str, Callable[[], Cases]]) -> Results:
    """The results of these groups. The seeds before each case make it independent of the cases before it."""
    results: Results = {}
    for group, cases in groups.items():
        start, found = time.perf_counter(), {}
        for name, case in cases():
            found[name] = _result(f"{group}/{name}", case)
        results[group] = found
        say(f"{group}: {len(found)} cases, {time.perf_counter() - start:.1f} s")
    return results


def _result(name: str, case: Callable[[], Any]) -> Any:
    """What the case returns; of a case that raises an error, the kind of the error."""
    import numpy
    import torch

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return normalized(case())
    except Exception as error:
        say(f"{name} raises {type(error).__name__}: {error}")
        return {"error": type(error).__name__}


def write(path: Path, results: Results) -> None:
    """Store the results; gzip them if the name ends with .gz."""
    content = json.dumps(results, allow_nan=False, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def read(path: Path, only: Sequence[str] = ()) -> Results:
    """The stored results, of these groups or of all."""
    content = path.read_bytes()
    stored: Results = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return {group: cases for group, cases in stored.items() if not only or group in only}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command, files in (("store", ["file"]), ("compare", ["file"]), ("diff", ["old", "new"])):
        each = commands.add_parser(command)
        for name in files:
            each.add_argument(name, type=lambda text: Path(text).resolve(), metavar=name.upper())
        each.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="these groups of cases")
        each.add_argument("--strict", action="store_true", help="fail on additions too")
    asked = parser.parse_args(arguments)
    if asked.command == "diff":
        return tell(read(asked.old, asked.only), read(asked.new, asked.only), strict=asked.strict)
    from benchmarks.unchanged_cases import GROUPS, prepare

    if unknown := set(asked.only) - GROUPS.keys():
        parser.error(f"unknown groups: {', '.join(sorted(unknown))}; the groups are {', '.join(GROUPS)}")
    old = {} if asked.command == "store" else read(asked.file, asked.only)
    prepare()
    new = run({name: cases for name, cases in GROUPS.items() if not asked.only or name in asked.only})
    if asked.command == "compare":
        return tell(old, new, strict=asked.strict)
    write(asked.file, new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
