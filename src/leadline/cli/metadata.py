"""Metadata of fixes and claims, read without importing torch."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Declared = tuple[dict[str, Any], str]
"""What was passed to the decorator by name, and the docstring."""


def declared(folder: Path, decorator: str) -> Iterator[Declared]:
    """Of each function under this decorator, in the files of the folder."""
    for path in sorted(folder.glob("*.py")):
        yield from _in_file(ast.parse(path.read_bytes()), decorator)


def _in_file(tree: ast.Module, decorator: str) -> Iterator[Declared]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            for call in calls:
                if ast.unparse(call.func) == decorator:
                    yield _fields(call, constants), inspect.cleandoc(ast.get_docstring(node) or "")


def _fields(call: ast.Call, constants: Mapping[str, ast.expr]) -> dict[str, Any]:
    """What was passed by name: literals, or constants of the file."""
    found = {}
    for keyword in call.keywords:
        value = keyword.value
        known = constants.get(value.id, value) if isinstance(value, ast.Name) else value
        found[str(keyword.arg)] = ast.literal_eval(known)
    return found


# The fixes as their files tell them, read without running any: what they are is answered without torch.

FOLDER = Path(__file__).parents[1] / "fixes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Name, answers, reach and documentation of a fix."""

    name: str
    answers: tuple[str, ...]
    reach: str
    since: str
    doc: str

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0]


@cache
def all_pages(folder: Path = FOLDER) -> tuple[Page, ...]:
    """Every fix, by name."""
    found = [Page(**fields, doc=doc) for fields, doc in declared(folder, "fix")]
    return tuple(sorted(found, key=lambda each: each.name))


def answering(code: str) -> list[Page]:
    """The fixes that are tried for findings of this code."""
    return [page for page in all_pages() if code.startswith(page.answers)]
