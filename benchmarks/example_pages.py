"""Docs pages about the scripts of `examples/`: each script is run once, and its docstring is its section."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from benchmarks.result_files import ROOT, Results, fill_file, load, run_missing
from leadline.checks import find_check
from leadline.fixes import all_fixes


class Measure(Protocol):
    """Return the result of a script as JSON. If `proved`, its repair is searched and proved."""

    def __call__(self, name: str, *, proved: bool) -> dict[str, Any]: ...


class Render(Protocol):
    """Return the page's text from the measured results."""

    def __call__(self, results: Results) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of `examples/` with a docs page and a results file of the same name."""

    name: str
    scripts: Sequence[str]
    """The scripts, in the order of the page."""

    @property
    def page(self) -> Path:
        return ROOT / "docs" / "tutorial" / f"{self.name}.md"

    def script(self, name: str) -> ModuleType:
        return import_module(f"examples.{self.name}.{name}")

    def paragraphs(self, name: str) -> list[str]:
        """Return the paragraphs of the script's docstring."""
        return inspect.cleandoc(self.script(name).__doc__ or "").split("\n\n")

    def prose(self, name: str) -> list[str]:
        """Return the paragraphs that are not code."""
        return [each for each in self.paragraphs(name) if not each.startswith("    ")]

    def command(self, name: str) -> str:
        return f"`python -m examples.{self.name}.{name}`"


def linked_check(code: str) -> str:
    """Return the code of a check as a link from a page of the tutorial to its file."""
    return f"[{code}](../../{source_file(find_check(code).look)})"


def linked_fixes(names: str) -> str:
    """Return fixes that were applied together, "a + b", each as a link to its file."""
    fixes = {each.name: each for each in all_fixes()}
    return " + ".join(f"[{name}](../../{source_file(fixes[name].propose)})" for name in names.split(" + "))


def source_file(function: Callable[..., Any]) -> str:
    """Return the path in the repository of the file that defines a check or a fix.

    Docs link to this file, which exists wherever they are read; `docs/hooks.py` turns the link into one to its page.
    """
    return f"src/{function.__module__.replace('.', '/')}.py"


def anchor(heading: str) -> str:
    """Return what a link to a heading ends with, in the repository and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def run(folder: Folder, measure: Measure, render: Render) -> None:
    """Run the command line of such a benchmark: measure what is missing (of the named scripts) and fill the page."""
    torch.set_num_threads(1)
    if "--page" not in sys.argv:
        wanted = [each for each in sys.argv[1:] if not each.startswith("--")] or folder.scripts
        proved = "--unproved" not in sys.argv
        run_missing(folder.name, {name: partial(measure, name, proved=proved) for name in wanted}, print)
    fill_file(folder.page, folder.name, render(load(folder.name)))
