"""Run tests in forked children, each of which has one changed place in Leadline.

One process imports Leadline and collects all tests. A child then replaces the code of the functions of one file, or the
value of one constant, and runs the tests that execute the changed line. So a mutant costs no more than its tests.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

from benchmarks.mutation.executed_lines import FAST, FOLDERS, SOURCE, function_of
from benchmarks.result_files import ROOT

# Heuristic: processor time that the tests of one mutant get together, from the first on.
MAX_TEST_SECONDS = 5.0
# Heuristic: the same for a survivor that is looked at again; tests of repairs train networks.
MAX_LONGER_SECONDS = 30.0
# Heuristic: processor time of a child. Chosen tests need far less, so one that takes longer hangs: that is noticed.
MAX_SECONDS = 120
HANGS = "runs out of time"
NOT_APPLIED = "the change cannot be made"

Change = tuple[Path, ast.Module, str | None]
"""The file, its changed program, and the constant that the change is in; None if it is in a function."""
FailingTest = Callable[[Change | None, Sequence[str]], str | None]
"""Takes a change and the names of tests or test functions; returns the first that fails, or None if all pass."""


def with_collected_tests(
    use: Callable[[FailingTest], None],
    *,
    tests: Sequence[str] = FOLDERS,
    max_seconds: float = MAX_TEST_SECONDS,
) -> None:
    """Collect the fast tests, and call `use` with a function that runs some of them on a change.

    The tests of a change get `max_seconds` of processor time together.
    """
    quietly = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    paths = [str(ROOT / each) for each in tests]
    pytest.main([*quietly, "-m", FAST, *paths], plugins=[_MutantLoop(use, max_seconds)])


class _MutantLoop:
    """A pytest plugin that runs mutants where pytest would run its tests."""

    def __init__(self, use: Callable[[FailingTest], None], max_seconds: float) -> None:
        self.use, self.max_seconds = use, max_seconds
        self.items: dict[str, list[pytest.Item]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            self.items.setdefault(function_of(item.nodeid), []).append(item)
        gc.freeze()
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            self.use(self.failing_test)
        return True

    def failing_test(self, change: Change | None, tests: Sequence[str]) -> str | None:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _silence()
            try:
                name = self._first_failure(change, tests)
            except BaseException as error:  # a child must not return
                name = f"{NOT_APPLIED}: {type(error).__name__}: {error}"
            os.write(writer, (name or "").encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            name = stream.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return HANGS if os.WTERMSIG(status) == signal.SIGXCPU else f"signal {os.WTERMSIG(status)}"
        if name.startswith(NOT_APPLIED):
            raise RuntimeError(name)
        return name or None

    def _first_failure(self, change: Change | None, tests: Sequence[str]) -> str | None:
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 5))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        if change is not None:
            _apply(*change)
        begin = time.process_time()
        items = [item for test in tests for item in self.items.get(function_of(test), ())]
        items = [item for item in items if item.nodeid in tests or function_of(item.nodeid) in tests]
        for item, following in zip_longest(items, items[1:]):
            if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
                return item.nodeid
            if time.process_time() - begin > self.max_seconds:
                return None
        return None


def _silence() -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)


def _apply(path: Path, tree: ast.Module, constant: str | None) -> None:
    """Change the functions of a file to those of `tree`, or one of its constants and what it computes of it.

    The file is loaded first: a test that loads it only when it runs would get the unchanged one.
    """
    loaded = [each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == str(path)]
    module = loaded[0] if loaded else importlib.import_module(_module_name(path))
    if constant is None:
        _replace_functions(path, compile(tree, str(path), "exec", dont_inherit=True))
        return
    names = {constant}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            read = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
            assigned = [node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
            if names & {*assigned, *read}:
                names.update(assigned)
                _assign(module, statement, assigned)


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _assign(module: object, statement: ast.Assign | ast.AnnAssign, names: Sequence[str]) -> None:
    """Execute an assignment of a module again, and give the values to all modules that import the names from it."""
    old = {name: vars(module)[name] for name in names}
    program = ast.Module(body=[statement], type_ignores=[])
    exec(compile(program, "<constant>", "exec", dont_inherit=True), vars(module))
    for each in list(sys.modules.values()):
        for name in names:
            if getattr(each, "__dict__", {}).get(name) is old[name]:
                setattr(each, name, vars(module)[name])


def _replace_functions(path: Path, program: CodeType) -> None:
    original = _codes(compile(path.read_text(), str(path), "exec", dont_inherit=True))
    pairs = list(zip(original, _codes(program), strict=True))
    by_code = dict(pairs)
    by_place = {
        _place(old): new for old, new in pairs
    }  # code that was loaded from a file may differ in its constants
    gc.unfreeze()
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == str(path):
            each.__code__ = by_code.get(each.__code__) or by_place[_place(each.__code__)]


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> list[CodeType]:
    inner = [
        each for constant in code.co_consts if isinstance(constant, CodeType) for each in _codes(constant)
    ]
    return [code, *inner]
