"""A file of the user with its syntax tree, and what changes of it are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leadline.records import Source, SourceEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the user, and its syntax tree."""

    name: str
    """Path from the root of the repository, or the whole path outside of it."""
    text: str
    tree: ast.Module

    def segment(self, node: ast.expr) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def offset(self, line: int, column: int) -> int:
        """Position in the text; columns of a syntax tree count bytes."""
        rows = self.text.splitlines(keepends=True)
        before = rows[line - 1].encode()[:column].decode()
        return sum(map(len, rows[: line - 1])) + len(before)

    def replaced(self, start: int, end: int, new: str, says: str) -> SourceEdit:
        """The change of whole lines that replaces `text[start:end]`; `{line}` in the sentence is its first line."""
        first = self.text.count("\n", 0, start)
        last = self.text.count("\n", 0, end)
        rows = self.text.splitlines(keepends=True)
        head = sum(map(len, rows[:first]))
        tail = sum(map(len, rows[: last + 1]))
        source = Source(file=self.name, line=first + 1)
        return SourceEdit(
            source=source,
            old=self.text[head:tail],
            new=self.text[head:start] + new + self.text[end:tail],
            says=says.format(place=source),
        )


def read_source(path: Path, root: Path) -> SourceFile | None:
    """The file at a path; None if it cannot be read as Python."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    return SourceFile(name=name, text=text, tree=tree)


def only(edits: Iterator[SourceEdit]) -> SourceEdit | None:
    """The only one of these changes; None if there is none, or more than one."""
    found = list(edits)
    return found[0] if len(found) == 1 else None


def calls_in(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    """The last name of what is called: "softmax" for `F.softmax(x)`; "" if it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def span(file: SourceFile, node: ast.expr) -> tuple[int, int]:
    """First position of an expression in the text, and the one after its last."""
    start = file.offset(node.lineno, node.col_offset)
    return start, file.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


def imports_name(tree: ast.Module, name: str) -> bool:
    """Whether the file imports something under this name."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return any((alias.asname or alias.name) == name for node in imports for alias in node.names)
