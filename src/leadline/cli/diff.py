"""A repair as a change of the user's own file: a unified diff of the factory, or a snippet where that is not clear."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from leadline.report.snippet import split_imports
from leadline.sources import repository_root
from leadline.targets import source_of

POSITIONS = {"model": 0, "optimizer": 4}
"""Places in the tuple of a Case's fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The one place at which a factory returns, and what its model and optimiser are called there."""

    line: int
    """First line of the return statement, from 1."""
    last: int
    indent: str
    names: dict[str, str]
    """Expressions for "model" and, if there is one, "optimizer"."""
    value: str
    """What is returned, if it has to be given a name first; "" if not."""


def diff_of(target: str, code: str) -> str:
    """The diff, ready for `git apply` or `patch -p1`; the code itself if the factory is not as simple as that."""
    path, attribute = source_of(target)
    try:
        text = path.read_text(encoding="utf-8") if path is not None else ""
        found = _exit(ast.parse(text), text, attribute)
    except (OSError, SyntaxError, ValueError):
        found = None
    if path is None or found is None or not code:
        return code + "\n" if code else ""
    changed = patched(text, found, code)
    name = _name(path)
    return "".join(
        unified_diff(
            text.splitlines(keepends=True), changed.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
    )


def patched(text: str, found: Exit, code: str) -> str:
    """The file with the code before the factory's return; what it imports goes to the other imports."""
    imports, body = split_imports(code)
    rows = text.splitlines(keepends=True)
    aliases = [f"{name} = {said}" for name, said in found.names.items() if name != said and name in code]
    lines = [*([f"made = {found.value}"] if found.value else []), *aliases, *body]
    inside = [f"{found.indent}{line}\n" if line else "\n" for line in lines]
    ending = [f"{found.indent}return made\n"] if found.value else rows[found.line - 1 : found.last]
    rows[found.line - 1 : found.last] = [*inside, *ending]
    place = _after_imports(ast.parse(text))
    rows[place:place] = [f"{line}\n" for line in imports if f"{line}\n" not in rows]
    return "".join(rows)


def _exit(tree: ast.Module, text: str, attribute: str) -> Exit | None:
    """None unless the factory is a plain function of the file whose last statement is its only return."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute]
    if len(functions) != 1:
        return None
    returns = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Return)]
    last = functions[0].body[-1]
    if len(returns) != 1 or returns[0] is not last or returns[0].value is None:
        return None
    return _described(returns[0], returns[0].value, text)


def _described(node: ast.Return, value: ast.expr, text: str) -> Exit | None:
    parts = _parts(value)
    if parts is None:
        return None
    simple = all(isinstance(each, ast.Name) for each in parts.values())
    accesses = _accesses(value, parts)
    return Exit(
        line=node.lineno,
        last=node.end_lineno or node.lineno,
        indent=" " * node.col_offset,
        names={name: ast.unparse(each) for name, each in parts.items()} if simple else accesses,
        value="" if simple else ast.get_source_segment(text, value) or ast.unparse(value),
    )


def _parts(value: ast.expr) -> dict[str, ast.expr] | None:
    """The expressions for model and optimiser in a Case, a tuple or a dict; None if it is none of these."""
    if isinstance(value, ast.Dict):
        pairs = {
            key.value: item
            for key, item in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        found = {name: pairs[name] for name in POSITIONS if name in pairs}
    elif isinstance(value, ast.Tuple) or (isinstance(value, ast.Call) and _is_case(value)):
        items = value.elts if isinstance(value, ast.Tuple) else value.args
        if any(isinstance(each, ast.Starred) for each in items):
            return None
        found = {name: items[place] for name, place in POSITIONS.items() if place < len(items)}
        if isinstance(value, ast.Call):
            found |= {each.arg: each.value for each in value.keywords if each.arg in POSITIONS}
    else:
        return None
    return found if "model" in found else None


def _accesses(value: ast.expr, parts: dict[str, ast.expr]) -> dict[str, str]:
    """How the parts are read from what is returned once that is called `made`."""
    if isinstance(value, ast.Call):
        return {name: f"made.{name}" for name in parts}
    if isinstance(value, ast.Dict):
        return {name: f'made["{name}"]' for name in parts}
    return {name: f"made[{POSITIONS[name]}]" for name in parts}


def _is_case(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "Case"


def _after_imports(tree: ast.Module) -> int:
    """Line behind the last import at the top level, or behind the docstring."""
    ends = [node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if ends:
        return max(ends)
    first = tree.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) if is_text else 0


def _name(path: Path) -> str:
    root = repository_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
