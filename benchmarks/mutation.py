"""Measure which small mistakes in the checks, the op table and the symmetry solver the tests notice.

    python -m benchmarks.mutation [HOW MANY [FOLDER]]

The script tests mutants of a fixed random sample that have no result yet and stores each result in
benchmarks/results/mutation.json. A mutant changes one comparison, sign, number or connective in one file. The examples
that checks are tested on are not mutated. Each mutant runs the tests of its folder in a forked child, which ends at the
first failure. A mutant that no test notices survives. Libraries are loaded once, in the parent; the child loads
Leadline itself, with the one file changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.result_files import ROOT, Results, fill_file, load, save, table

NAME = "mutation"
SOURCE = ROOT / "src" / "leadline"
SEED, SAMPLE = 12, 150
# Heuristic: processor time per mutant. A mutant that takes longer hangs, which counts as noticed.
MAX_SECONDS = 60
TESTS = {
    "checks/model": ("tests/checks",),
    "ops": ("tests/ops",),
    "readings/symmetry": (  # the fastest tests first: most mutants fail there
        "tests/readings/symmetry/test_solving.py",
        "tests/readings/symmetry/test_spellings.py",
        "tests/readings/symmetry/test_claims.py",
        "tests/readings/symmetry/test_equilibrium.py",
        "tests/readings/symmetry/test_rescale.py",
        "tests/readings/symmetry/test_page.py",
        "tests/readings/symmetry/test_agreement.py",
        "tests/readings/symmetry/test_models.py",
    ),
}
"""Folders of the source that are mutated, each with the tests that should notice."""
EXAMPLES = (
    "_example",
    "_rehearsed",
    "example",
    "scaled_example",
    "stack_with_step_size",
)  # these make the test data of a check
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
EQUIVALENT: dict[str, str] = {
    "rules/dead_branches.py dead_branches: 0.0 -> 0.5": "in a span of dead branches every ratio is known",
    "ops/slopes.py _bent: below ** 2 (3) -> below * 2": "slopes below zero are far less than one in the table",
    "ops/slopes.py _most: 50 -> 51": "a grid that is finer by a fiftieth has the same largest slopes",
    "ops/slopes.py _nodes: 2 * index + 1 -> 2 * index - 1": "the same lattice, one step further",
    "ops/slopes.py _most: 801 -> 802": "one more point of a grid on which the largest slope is looked for",
    "ops/slopes.py file: 0.0001 -> 0.00015000000000000001": "a difference quotient as exact as the one before",
    "symmetry/basis.py _signed: each > 0 -> each >= 0": "exponents that are zero are not kept",
    "symmetry/confirm.py _jittered: value + JITTER * size * noise.to(value.dtype) -> "
    "value - JITTER * size * noise.to(value.dtype)": "the noise has no preferred sign",
    "symmetry/confirm.py verify: 2.0 -> 3.0": "a symmetry holds for any factor",
}
"""Survivors that compute the same as the original, with the reason. Keys name files as they were when they were run."""


def mutant(text: str, number: int) -> tuple[str, str]:
    """Return a description of the change at this position, and the changed source."""
    tree = ast.parse(text)
    _, node = next(each for place, each in enumerate(_places(tree)) if place == number)
    label = labels(text)[number]
    _change(node)
    return f"{label} -> {' '.join(ast.unparse(node).split())}", ast.unparse(tree)


def labels(text: str) -> list[str]:
    """Return a stable name for each position: its scope, its code, and its index among equal ones."""
    seen: Counter[str] = Counter()
    found = []
    for scope, node in _places(ast.parse(text)):
        label = f"{scope}: {' '.join(ast.unparse(node).split())}"
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if seen[label] > 1 else label)
    return found


def _places(node: ast.AST, scope: str = "file") -> Iterator[tuple[str, Any]]:
    for child in ast.iter_child_nodes(node):
        if _is_example(child, node):
            continue
        within = child.name if isinstance(child, ast.FunctionDef | ast.ClassDef) else scope
        if _can_change(child):
            yield within, child
        yield from _places(child, within)


def _is_example(child: ast.AST, parent: ast.AST) -> bool:
    """Return whether a node is test data of a check: an argument of its decorator, or the function that makes it."""
    decorators = parent.decorator_list if isinstance(parent, ast.FunctionDef) else []
    return child in decorators or (isinstance(child, ast.FunctionDef) and child.name in EXAMPLES)


def _can_change(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in COMPARISONS
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return type(node.op) in SIGNS and not _is_text(node)
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(each, ast.JoinedStr) or isinstance(getattr(each, "value", None), str) for each in sides
    )


def _change(node: Any) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = SIGNS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()  # `+condition` has the same truth value as the condition
    else:
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5


def sample() -> list[tuple[str, str, str]]:
    """Yield folder, key and changed source of the sample, equally many from each folder and alternating.

    Positions are drawn by a hash of their names, so a change of the source replaces only the mutants of that part.
    """
    chosen: list[list[tuple[str, str, str]]] = []
    for folder in TESTS:
        every = [
            (path, number, f"{path.relative_to(SOURCE)} {label}")
            for path in sorted((SOURCE / folder).glob("*.py"))
            if not path.stem.endswith("examples")
            for number, label in enumerate(labels(path.read_text()))
        ]
        picked = sorted(every, key=lambda each: _drawn(each[2]))[: SAMPLE // len(TESTS)]
        made = [(path, *mutant(path.read_text(), number)) for path, number, _ in picked]
        chosen.append([(folder, f"{path.relative_to(SOURCE)} {what}", text) for path, what, text in made])
    return [each for turn in zip(*chosen, strict=True) for each in turn]


def _drawn(name: str) -> bytes:
    return hashlib.sha256(f"{SEED} {name}".encode()).digest()


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An importer that loads one module from changed source."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != self.name:
            return None
        folder = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=str(self.path), is_package=folder is not None
        )
        spec.submodule_search_locations = folder
        return spec

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.text, str(self.path), "exec"), vars(module))


def is_noticed(file: str, text: str, tests: Sequence[str]) -> bool:
    """Return whether the tests fail on the changed file."""
    child = os.fork()
    if child == 0:
        os._exit(_tested(file, text, tests))
    _, status = os.waitpid(child, 0)
    return status != 0


def _tested(file: str, text: str, tests: Sequence[str]) -> int:
    import resource

    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    parts = Path(file).with_suffix("").parts
    name = ".".join(("leadline", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    sys.meta_path.insert(0, Mutated(name, SOURCE / file, text))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    quietly = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*quietly, "-m", "not slow", *(str(ROOT / each) for each in tests)]))


def render(results: Results) -> str:
    rows = []
    for folder in TESTS:
        cases = [each for each in results["cases"].values() if each["folder"] == folder]
        noticed = sum(each["noticed"] for each in cases)
        same = sum(key in EQUIVALENT for key, each in results["cases"].items() if each["folder"] == folder)
        score = f"{noticed / (len(cases) - same):.0%}" if len(cases) > same else "not run"
        rows.append([folder, f"{len(cases)} of {SAMPLE // len(TESTS)}", str(noticed), str(same), score])
    return table(["folder", "mutants run", "noticed", "equivalent", "score"], rows)


def main() -> None:
    import numpy  # noqa: F401  loaded once, for all children
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    results = load(NAME)
    most = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE
    folders = sys.argv[2:] or list(TESTS)
    missing = [each for each in sample() if each[1] not in results["cases"] and each[0] in folders]
    for folder, key, text in missing[:most]:
        begin = time.process_time()
        noticed = is_noticed(key.split(" ")[0], text, TESTS[folder])
        print(f"{'noticed' if noticed else 'SURVIVED'}  {key}  {time.process_time() - begin:.1f}", flush=True)
        results["cases"][key] = {"folder": folder, "noticed": noticed}
        save(NAME, results)
    fill_file(ROOT / "docs" / "lab-notes" / "robustness.md", NAME, render(results))


if __name__ == "__main__":
    main()
