"""Edits of a recipe as changes of the user's own source: a call that is deleted, a learning rate that is rewritten.

The trace knows the line that makes each call, and the syntax tree of that file knows what stands there. An edit becomes
a change of the source only if exactly one place can be meant; every other edit stays code that is added.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.lookup import last_op
from leadline.records import Edit, Op, Source, SourceEdit
from leadline.tracer.sources import repository_root

SEQUENTIAL = "torch.nn.modules.container.Sequential"


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


def edit_source(edit: Edit, context: FixContext, files: Sequence[Path] = ()) -> SourceEdit | None:
    """The edit as a change of the user's source; None if no place, or more than one, can be meant.

    `files` are those in which the model and its optimizer may be built, besides the files of its classes.
    """
    if edit.action == "rate" and not edit.where:
        return _only(_rate_edits(edit, context, _read_files(context, files)))
    if edit.action == "train":
        return _only(_optimizer_edits(context, _read_files(context, files)))
    if edit.action == "register":
        return _only(_registered_lists(edit, _read_files(context, files)))
    if edit.action in ("last-axis", "log-softmax"):
        return _only(_loss_edits(edit, context))
    if edit.options.get("to") != "identity":
        return None
    if edit.action == "reroute":
        op = last_op(context, str(edit.options.get("calls")), edit.where)
        return None if op is None else _only(_deleted_calls(context, op, op.name))
    if edit.action == "swap":
        parent, _, name = edit.where.rpartition(".")
        op = last_op(context, None, edit.where)
        if op is not None and _is_users(context, parent):
            return _only(_deleted_calls(context, op, name))
        return _only(_deleted_elements(context, edit.where, _read_files(context, files)))
    return None


def apply_source_edits(text: str, edits: Sequence[SourceEdit]) -> str:
    """The text of a file with these changes of it."""
    rows = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda each: -each.source.line):
        first = edit.source.line - 1
        rows[first : first + len(edit.old.splitlines())] = edit.new.splitlines(keepends=True)
    return "".join(rows)


def _only(edits: Iterator[SourceEdit]) -> SourceEdit | None:
    found = list(edits)
    return found[0] if len(found) == 1 else None


def _is_users(context: FixContext, path: str) -> bool:
    """Whether the module at a path has its code in the user's repository."""
    return any(each.path == path and each.source is not None for each in context.trace.modules)


def _read_files(context: FixContext, files: Sequence[Path]) -> list[SourceFile]:
    root = repository_root()
    written = [root / each.source.file for each in context.trace.modules if each.source is not None]
    paths = dict.fromkeys(path.resolve() for path in (*files, *written))
    return [file for path in paths if (file := _read(path, root)) is not None]


def _read(path: Path, root: Path) -> SourceFile | None:
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    return SourceFile(name=name, text=text, tree=tree)


# A call that is replaced by its own input.


def _deleted_calls(context: FixContext, op: Op, name: str) -> Iterator[SourceEdit]:
    """Deletions of the call of that name in the line that made the op."""
    root = repository_root()
    file = None if op.source is None else _read(root / op.source.file, root)
    if file is None or op.source is None:
        return
    is_method = op.callable.startswith("torch.Tensor.") and op.name == name
    for call in _calls(file.tree):
        line = op.source.line
        if _called_name(call) != name or not call.lineno <= line <= (call.end_lineno or call.lineno):
            continue
        kept = _input_of(call, is_method=is_method)
        if kept is not None:
            start = file.offset(call.lineno, call.col_offset)
            end = file.offset(call.end_lineno or call.lineno, call.end_col_offset or 0)
            yield file.replaced(start, end, file.segment(kept), f"Delete the {name} in {{place}}")


def _input_of(call: ast.Call, *, is_method: bool) -> ast.expr | None:
    """The tensor that a call reads: the object of a method, otherwise the first argument."""
    if is_method and isinstance(call.func, ast.Attribute):
        return call.func.value
    named = [each.value for each in call.keywords if each.arg == "input"]
    first = call.args[0] if call.args else next(iter(named), None)
    return None if isinstance(first, ast.Starred) else first


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


# A module that is deleted from the list of layers.


def _deleted_elements(context: FixContext, where: str, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Deletions of the constructor of an `nn.Sequential`'s only module of its kind from a call or list."""
    types = {each.path: each.type for each in context.trace.modules}
    kind = types.get(where, "").rpartition(".")[2]
    is_only = sum(each.rpartition(".")[2] == kind for each in types.values()) == 1
    if not is_only or types.get(where.rpartition(".")[0]) != SEQUENTIAL:
        return
    for file in files:
        for node in ast.walk(file.tree):
            elements = _elements(node)
            for place, each in enumerate(elements):
                if isinstance(each, ast.Call) and _called_name(each) == kind and len(elements) > 1:
                    yield _without_element(file, elements, place, kind)


def _elements(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return node.args
    return node.elts if isinstance(node, ast.List) else []


def _without_element(file: SourceFile, elements: Sequence[ast.expr], place: int, kind: str) -> SourceEdit:
    node = elements[place]
    start = file.offset(node.lineno, node.col_offset)
    end = file.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
    if place:
        before = elements[place - 1]
        start = file.offset(before.end_lineno or before.lineno, before.end_col_offset or 0)
    else:
        end = file.offset(elements[1].lineno, elements[1].col_offset)
    return file.replaced(start, end, "", f"Delete the {kind} in {{place}}")


# A list of layers that becomes a container, and an optimizer that gets all parameters.


def _registered_lists(edit: Edit, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """The assignments of a list or dict to the attribute, wrapped into a container of torch."""
    name, kind = edit.options.get("name"), edit.options.get("kind")
    literals = ast.List | ast.ListComp | ast.Dict | ast.DictComp
    for file in files:
        prefix = "nn" if _imports_nn(file.tree) else "torch.nn"
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, literals):
                continue
            if [ast.unparse(each) for each in node.targets] == [f"self.{name}"]:
                start, end = _span(file, node.value)
                new = f"{prefix}.{kind}({file.segment(node.value)})"
                yield file.replaced(start, end, new, f"Put self.{name} into an nn.{kind} in {{place}}")


def _imports_nn(tree: ast.Module) -> bool:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return any((alias.asname or alias.name) == "nn" for node in imports for alias in node.names)


def _optimizer_edits(context: FixContext, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Optimizers that are built from a part of a model, `model.head.parameters()`, built from all of it."""
    optimizer = context.trace.optimizer
    for file in files:
        for call in _calls(file.tree):
            if optimizer is None or _called_name(call) != optimizer.name or not call.args:
                continue
            root = _root_of_parameters(call.args[0])
            if root is not None:
                start, end = _span(file, call.args[0])
                says = f"Give all parameters of {root} to {optimizer.name} in {{place}}"
                yield file.replaced(start, end, f"{root}.parameters()", says)


def _root_of_parameters(node: ast.expr) -> str | None:
    """ "model" for `model.head.parameters()`; None for anything else, also for `model.parameters()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args:
        return None
    part = node.func.value
    if node.func.attr != "parameters" or isinstance(part, ast.Name):
        return None
    while isinstance(part, ast.Attribute | ast.Subscript):
        part = part.value
    return part.id if isinstance(part, ast.Name) and part.id != "self" else None


# The call of a loss, with another argument or another name.


def _loss_edits(edit: Edit, context: FixContext) -> Iterator[SourceEdit]:
    """Changes of the one call of a loss op in the user's code."""
    root = repository_root()
    for op in context.trace.ops:
        file = None if op.kind != "loss" or op.source is None else _read(root / op.source.file, root)
        if file is None or op.source is None:
            continue
        for call in _calls(file.tree):
            is_here = call.lineno <= op.source.line <= (call.end_lineno or call.lineno)
            if _called_name(call) != op.name or not is_here:
                continue
            if edit.action == "last-axis" and call.args and not isinstance(call.args[0], ast.Starred):
                start, end = _span(file, call.args[0])
                new = f"{_operand(file, call.args[0])}.{edit.options['kind']}(-1)"
                yield file.replaced(start, end, new, f"Write {new} in {{place}}")
            elif edit.action == "log-softmax" and op.name == "nll_loss":
                start, end = _span(file, call.func)
                new = file.segment(call.func).replace("nll_loss", "cross_entropy")
                yield file.replaced(start, end, new, f"Call {new} on the logits in {{place}}")


def _operand(file: SourceFile, node: ast.expr) -> str:
    """The source of an expression, in parentheses where a method call would bind more tightly."""
    text = file.segment(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def _span(file: SourceFile, node: ast.expr) -> tuple[int, int]:
    start = file.offset(node.lineno, node.col_offset)
    return start, file.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)


# A learning rate that is rewritten.


def _rate_edits(edit: Edit, context: FixContext, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Changes of the number that is given as `lr` somewhere, directly or by the name of a constant."""
    optimizer, factor = context.trace.optimizer, edit.options.get("factor")
    rates = {group.lr for group in optimizer.groups} if optimizer is not None else set()
    if len(rates) != 1 or not isinstance(factor, int | float):
        return
    rate = rates.pop()
    for file in files:
        given = [each.value for call in _calls(file.tree) for each in call.keywords if each.arg == "lr"]
        numbers = {id(node): node for value in given for node in _numbers(file.tree, value)}
        for node in numbers.values():
            if rate is not None and node.value == rate:
                start = file.offset(node.lineno, node.col_offset)
                end = file.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
                new = f"{rate * factor:.4g}"
                yield file.replaced(start, end, new, f"Set the learning rate to {new} in {{place}}")


def _numbers(tree: ast.Module, value: ast.expr) -> Iterator[ast.Constant]:
    """The number itself, or the one that its name is assigned if it is assigned once."""
    if isinstance(value, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [value.id]
        ]
        value = assigned[0] if len(assigned) == 1 else value
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        yield value
