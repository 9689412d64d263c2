"""Run mutants and write their table; see the package."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from benchmarks.mutation.changes import Mutant, mutate, sample, uses
from benchmarks.mutation.child import MAX_LONGER_SECONDS, Change, FailingTest, with_collected_tests
from benchmarks.mutation.executed_lines import FOLDERS, function_of, tests_executing
from benchmarks.mutation.page import EQUIVALENT, render
from benchmarks.result_files import ROOT, Results, fill_file, load, save

NAME = "mutation"
# Heuristic: number of test functions that a mutant is run against at most.
MAX_TESTS = 80


def candidate_tests(mutant: Mutant, within: Sequence[str] = FOLDERS) -> list[str]:
    """Return the tests of some files that execute a mutant's line, then others that execute its file.

    Of both, those of its own folder come first, and fast ones first. Of a parametrized test only some cases were
    recorded, so one of the others may execute the line too.
    """
    position, length = mutant.position, mutant.path.read_text().count("\n") + 1
    lines = [(mutant.path, line) for line in range(position.first_line, position.last_line + 1)]
    exact = tests_executing([*lines, *(uses(mutant.path, position.constant) if position.constant else ())])
    near = tests_executing((mutant.path, line) for line in range(1, length + 1))
    related = f"tests/{mutant.folder}/"
    seconds = {name: each for name, each in (near | exact).items() if name.startswith(tuple(within))}
    order = sorted(seconds, key=lambda name: (name not in exact, not name.startswith(related), seconds[name]))
    return order[:MAX_TESTS]


def run(
    mutants: Iterable[Mutant],
    results: Results,
    failing_test: FailingTest,
    *,
    is_first: bool,
    within: Sequence[str] = FOLDERS,
) -> None:
    """Run mutants against tests of some files and store each result as soon as it is known."""
    for mutant in mutants:
        begin = time.perf_counter()
        key, tests = mutant.key, candidate_tests(mutant, within)
        _, tree = mutate(mutant.path.read_text(), mutant.number)
        test = _noticing_test((mutant.path, tree, mutant.position.constant), tests, failing_test)
        case = results["cases"].setdefault(key, {"folder": mutant.folder})
        case |= {"first": test is not None} if is_first else {}
        case |= {"noticed": test is not None, "test": test}
        save(NAME, results)
        spent = f"{len(tests)} tests {time.perf_counter() - begin:.0f} s"
        print(f"{'noticed ' if test else 'SURVIVED'}  {key}  {spent}  {test or ''}", flush=True)


def _noticing_test(change: Change, tests: list[str], failing_test: FailingTest) -> str | None:
    """Return the first test that fails on the change and passes without it."""
    test = failing_test(change, tests)
    while test is not None and "::" in test and failing_test(None, [test]) is not None:
        print(f"fails without a mutant  {test}", flush=True)
        tests = [each for each in tests if each != function_of(test)]
        test = failing_test(change, tests)
    return test


def main() -> None:
    command, *words = sys.argv[1:] or ["run"]
    results, drawn = load(NAME), {each.key: each for each in sample()}
    # A change of the source replaces some of the sample; what it replaced no longer counts.
    cases = results["cases"] = {key: case for key, case in results["cases"].items() if key in drawn}
    if command == "run":
        mutants = [
            each for key, each in drawn.items() if key not in cases and (not words or each.folder in words)
        ]
        with_collected_tests(lambda failing_test: run(mutants, results, failing_test, is_first=True))
    elif command in ("longer", "again"):
        survivors = {key for key, case in cases.items() if not case["noticed"] and key not in EQUIVALENT}
        mutants = [each for key, each in drawn.items() if key in survivors]
        with_collected_tests(
            lambda failing_test: run(
                mutants, results, failing_test, is_first=command == "longer", within=words or FOLDERS
            ),
            tests=words or FOLDERS,
            max_seconds=MAX_LONGER_SECONDS,
        )
    save(NAME, results)
    fill_file(ROOT / "docs" / "lab-notes" / "robustness.md", NAME, render(results))


if __name__ == "__main__":
    main()
