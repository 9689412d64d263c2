"""Find numeric constants whose origin no comment gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support import ROOT

CONSTANT_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
ORIGIN = re.compile(r"# (Derived|Cited|Heuristic|Calibrated by (?P<script>benchmarks/[\w/]+(?:\.py)?))\b")


def is_number(value: ast.expr) -> bool:
    """Whether an expression is made of literal numbers alone: one, arithmetic with them, or a collection of them."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return bool(value.elts) and all(is_number(each) for each in value.elts)
    return (
        isinstance(value, ast.Dict) and bool(value.values) and all(is_number(each) for each in value.values)
    )


def numeric_constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and names of each assignment of literal numbers to upper-case names at the top level of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        if node.value is not None and is_number(node.value) and all(map(CONSTANT_NAME.fullmatch, names)):
            yield node.lineno, ", ".join(names)


def constants_without_origin(text: str) -> Iterator[str]:
    """Numeric constants without a comment above that says where the number comes from.

    One comment may stand above several assignments if there is no blank line between them.
    """
    lines = text.splitlines()
    for line, names in numeric_constants(ast.parse(text)):
        above = lines[: line - 1]
        while above and above[-1] and not above[-1].startswith("#"):
            above.pop()
        comment = []
        while above and above[-1].startswith("#"):
            comment.append(above.pop())
        origins = [origin for each in comment if (origin := ORIGIN.match(each))]
        if not origins:
            yield f"{line}: say above {names} where it comes from: Derived, Cited, Calibrated by benchmarks/, Heuristic"
        for origin in origins:
            if origin["script"] and not (ROOT / origin["script"]).exists():
                yield f"{line}: {origin['script']}, which {names} was calibrated by, does not exist"
