"""Changes of a training program that no edit of a model can make: the sign of its loss, `zero_grad`, the order of data.

A finding leads to the lines that it can be about: those from which the program calls `backward` and `step`, the line
that cuts the graph, the loop around them. A change is offered only if exactly one place can be meant. It is not proved
here: the command that offers it runs the changed program again (see `leadline.cli.program_repair`).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from leadline.fixes._engine.source_edits import deleted_calls, whole_model_edits
from leadline.fixes._engine.source_files import (
    SourceFile,
    called_name,
    calls_in,
    imports_name,
    only,
    span,
)
from leadline.records import Finding, Source, SourceEdit, severity_rank
from leadline.records.report import Report

BATCH_FIRST_LAYERS = frozenset(
    [
        *("RNN", "LSTM", "GRU", "MultiheadAttention"),
        *("TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer"),
    ]
)
"""Layers of torch that expect the batch on the second axis unless they are told otherwise."""
WRAPPERS = frozenset(["enumerate", "tqdm", "trange", "iter", "list", "islice", "prepare", "track"])
"""Calls around a loader that keep its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """The program's own file, what was found, and where its loop is driven from."""

    file: SourceFile
    report: Report
    lines: Mapping[str, tuple[Source, ...]]
    """By "the loss", "the step" and "the optimizer", the lines that call `backward` and `step`, and that build it."""
    untrained: Collection[str] = ()
    """Parameters with a gradient that no optimizer holds, if their values are those of an initializer."""

    def line_of(self, what: str) -> int | None:
        """The only line of the file from which this is called; None if there is none, or another."""
        places = self.lines.get(what, ())
        return places[0].line if len(places) == 1 and places[0].file == self.file.name else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEdit:
    """A change of the program's file, and the finding that it answers."""

    finding: Finding
    change: SourceEdit


def find_program_edits(source: ProgramSource) -> Iterator[ProgramEdit]:
    """The changes that can be meant, for the worst finding first; a note is answered too."""
    for finding in sorted(source.report.findings, key=lambda each: -severity_rank(each.severity)):
        propose = PROGRAM_EDITS.get(finding.code)
        change = None if propose is None else only(propose(source))
        if change is not None:
            yield ProgramEdit(finding=finding, change=change)


# Statements and names.


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _is_around(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _method_call(tree: ast.Module, line: int, name: str) -> ast.Call | None:
    """The only call of this method in a line."""
    calls = [
        call
        for call in calls_in(tree)
        if isinstance(call.func, ast.Attribute) and call.func.attr == name and _is_around(call, line)
    ]
    return calls[0] if len(calls) == 1 else None


def _scope(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line, or the module."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_around(node, line)
    ]
    return max(functions, key=lambda node: node.lineno, default=tree)


def _only_value(scope: ast.AST, name: str) -> ast.expr | None:
    """What is assigned to a name, if that happens once, and not as one of a tuple or by `+=`."""
    nodes = list(ast.walk(scope))
    stores = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    values = [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and [ast.unparse(target) for target in each.targets] == [name]
    ]
    is_assigned_once = sum(each.id == name for each in stores) <= 1
    return values[0] if len(values) == 1 and is_assigned_once else None


# D909: the sign of the loss.


def _signs_of_loss(source: ProgramSource) -> Iterator[SourceEdit]:
    """The minus sign before the loss, deleted."""
    file, line = source.file, source.line_of("the loss")
    call = None if line is None else _method_call(file.tree, line, "backward")
    if line is None or call is None or "maximize" in file.text or not isinstance(call.func, ast.Attribute):
        return
    value: ast.expr | None = _unscaled(call.func.value)
    if isinstance(value, ast.Name):
        value = _only_value(_scope(file.tree, line), value.id)
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        start, end = span(file, value)
        yield file.replaced(
            start, end, file.segment(value.operand), "Delete the minus sign of the loss in {place}"
        )


def _unscaled(root: ast.expr) -> ast.expr:
    """The loss in `(loss / 4).backward()` and `scaler.scale(loss).backward()`."""
    if isinstance(root, ast.BinOp) and isinstance(root.op, ast.Div | ast.Mult):
        return _unscaled(root.left)
    if isinstance(root, ast.Call) and called_name(root) == "scale" and len(root.args) == 1:
        return _unscaled(root.args[0])
    return root


# T816: gradients that are never cleared.


def _cleared_gradients(source: ProgramSource) -> Iterator[SourceEdit]:
    """`zero_grad` after the only statement that steps, which is right with and without accumulation."""
    file, line = source.file, source.line_of("the step")
    call = None if line is None else _method_call(file.tree, line, "step")
    if call is None or not isinstance(call.func, ast.Attribute) or _clears_gradients(file.tree):
        return
    statement = next(
        (each for each in _statements(file.tree) if isinstance(each, ast.Expr) and each.value is call), None
    )
    optimizer = call.args[0] if call.args and ast.unparse(call.args[0]).isidentifier() else call.func.value
    if statement is None or not _is_alone(file, statement):
        return
    indent = " " * statement.col_offset
    rows = file.text.splitlines(keepends=True)
    end = len("".join(rows[: statement.end_lineno]).rstrip("\n"))
    new = f"\n{indent}{file.segment(optimizer)}.zero_grad()"
    yield file.replaced(end, end, new, f"Call {file.segment(optimizer)}.zero_grad() after {{place}}")


def _clears_gradients(tree: ast.Module) -> bool:
    """Whether the file clears gradients somewhere: then it is not known what is wrong with that place."""
    if any(called_name(call) == "zero_grad" for call in calls_in(tree)):
        return True
    gradients = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "grad"]
    zeroed = [ast.unparse(call.func) for call in calls_in(tree) if called_name(call) == "zero_"]
    return any(isinstance(each.ctx, ast.Store) for each in gradients) or any(
        each.endswith(".grad.zero_") for each in zeroed
    )


def _is_alone(file: SourceFile, statement: ast.stmt) -> bool:
    """Whether nothing but a comment shares the lines of a statement."""
    rows = file.text.splitlines()
    before = rows[statement.lineno - 1].encode()[: statement.col_offset].decode()
    after = rows[(statement.end_lineno or statement.lineno) - 1].encode()[statement.end_col_offset :].decode()
    return not before.strip() and after.strip()[:1] in ("", "#")


# B203: a call or a block that cuts the graph.


def _deleted_cuts(source: ProgramSource) -> Iterator[SourceEdit]:
    """The `detach`, `.data` or `no_grad` block that cuts trainable parameters off, deleted, or `sample` replaced."""
    file = source.file
    for cut in source.report.profile.cuts:
        if cut.how == "zero":
            continue
        is_here = cut.place is not None and cut.place.file == file.name
        line = cut.place.line if is_here and cut.place is not None else 0
        if cut.how == "draw":
            yield from _reparameterized(file, line)
        if cut.how == "no_grad":
            yield from _deleted_blocks(file, line)
        for node in ast.walk(file.tree):
            kept = _uncut(node, cut.op)
            if kept is not None and isinstance(node, ast.expr) and _is_around(node, line):
                start, end = span(file, node)
                yield file.replaced(start, end, file.segment(kept), f"Delete the {cut.op} in {{place}}")


def _reparameterized(file: SourceFile, line: int) -> Iterator[SourceEdit]:
    """`distribution.sample()` with `rsample`, which is differentiable."""
    for call in calls_in(file.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "sample" and _is_around(call, line):
            _, end = span(file, call.func)
            yield file.replaced(end - len("sample"), end, "rsample", "Draw with rsample in {place}")


def _uncut(node: ast.AST, op: str) -> ast.expr | None:
    """The tensor in `tensor.detach()` or `tensor.data`; None for anything else."""
    if op == "detach" and isinstance(node, ast.Call) and called_name(node) == op and not node.args:
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    return node.value if op == "data" and isinstance(node, ast.Attribute) and node.attr == op else None


def _deleted_blocks(file: SourceFile, line: int) -> Iterator[SourceEdit]:
    """`with torch.no_grad():` around a line, deleted, and its body moved to the left."""
    rows = file.text.splitlines(keepends=True)
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.With) or not _is_around(node, line) or len(node.items) != 1:
            continue
        if not ast.unparse(node.items[0].context_expr).endswith("no_grad()"):
            continue
        header_end = node.items[0].context_expr.end_lineno or node.lineno
        body = "".join(rows[header_end : node.end_lineno])
        if '"""' in body or "'''" in body or node.body[0].lineno == header_end:
            continue  # the text of a string would move too
        moved = textwrap.indent(textwrap.dedent(body), " " * node.col_offset)
        start = file.offset(node.lineno, 0)
        end = sum(map(len, rows[: node.end_lineno]))
        if body.endswith("\n"):
            moved, end = moved.removesuffix("\n"), end - 1
        yield file.replaced(start, end, moved, "Delete the no_grad block in {place}")


# D911: one answer in a batch, because the data is in the order of its labels.


def _shuffled_orders(source: ProgramSource) -> Iterator[SourceEdit]:
    """The loader of the training loop with `shuffle=True`, or a fixed order of samples drawn at random."""
    file, line = source.file, source.line_of("the loss")
    loops = [] if line is None else [node for node in _loops(file.tree) if _is_around(node, line)]
    if line is None or not loops:
        return
    scope = _scope(file.tree, line)
    used = {node.id for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Name)}
    iterated = {ast.unparse(_unwrapped(loop.iter)) for loop in loops}
    for name in sorted(used | iterated):
        value = _only_value(scope, name) or _only_value(file.tree, name)
        if not isinstance(value, ast.Call):
            continue
        if name in iterated and called_name(value) == "DataLoader":
            yield from _shuffled_loader(file, value)
        elif called_name(value) in ("argsort", "arange") and imports_name(file.tree, "torch"):
            yield from _random_order(file, value)


def _loops(tree: ast.Module) -> Iterator[ast.For]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.For))


def _unwrapped(node: ast.expr) -> ast.expr:
    """`loader` in `enumerate(tqdm(loader))`."""
    while isinstance(node, ast.Call) and called_name(node) in WRAPPERS and node.args:
        node = node.args[0]
    return node


def _shuffled_loader(file: SourceFile, call: ast.Call) -> Iterator[SourceEdit]:
    given = {each.arg: each.value for each in call.keywords}
    if {"sampler", "batch_sampler", None} & {*given} or len(call.args) > 2:
        return
    says = "Shuffle the data of the DataLoader in {place}"
    shuffle = given.get("shuffle")
    if isinstance(shuffle, ast.Constant) and shuffle.value is False:
        yield file.replaced(*span(file, shuffle), "True", says)
    elif shuffle is None:
        yield _with_argument(file, call, "shuffle=True", says)


def _with_argument(file: SourceFile, call: ast.Call, argument: str, says: str) -> SourceEdit:
    """The call with one more keyword argument, after the last that it has."""
    last = max(
        [*call.args, *(each.value for each in call.keywords)],
        key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0),
        default=None,
    )
    if last is None:
        end = span(file, call)[1] - 1
        return file.replaced(end, end, argument, says)
    end = span(file, last)[1]
    return file.replaced(end, end, f", {argument}", says)


def _random_order(file: SourceFile, call: ast.Call) -> Iterator[SourceEdit]:
    """`torch.randperm` instead of `labels.argsort()` or `torch.arange(count)`."""
    of_torch = ast.unparse(call.func) == f"torch.{called_name(call)}"
    if called_name(call) == "arange" and of_torch and len(call.args) == 1 and not call.keywords:
        count = file.segment(call.args[0])
    elif called_name(call) == "argsort" and of_torch and call.args:
        count = f"len({file.segment(call.args[0])})"
    elif called_name(call) == "argsort" and not of_torch and isinstance(call.func, ast.Attribute):
        count = f"len({file.segment(call.func.value)})"
    else:
        return
    yield file.replaced(
        *span(file, call), f"torch.randperm({count})", "Draw the order of samples at random in {place}"
    )


# D901: samples that are mixed, because a layer expects the batch on its second axis.


def _batch_first(source: ProgramSource) -> Iterator[SourceEdit]:
    """The layer of the file that would be told, if the batch is on the first axis of what the model reads."""
    if not _mixes_rows(source.report):
        return
    for call in calls_in(source.file.tree):
        kind = called_name(call)
        if kind in BATCH_FIRST_LAYERS and not {"batch_first", None} & {each.arg for each in call.keywords}:
            says = f"Give {kind} batch_first in {{place}}"
            yield _with_argument(source.file, call, "batch_first=True", says)


def _mixes_rows(report: Report) -> bool:
    """Whether each row of the first axis has a prediction of its own and holds several positions.

    One sequence without a batch, or with a batch of one on the second axis, also mixes its rows, and is right to.
    """
    dependence, question = report.profile.dependence, report.profile.question
    if dependence is None or question is None or not question.predictions:
        return False
    rows = question.predictions[0]
    shapes = [each.shape for each in dependence.inputs if each.used]
    return any(len(shape) > 1 and shape[0] == rows and shape[1] > 1 for shape in shapes)


# D914: parameters that no optimizer holds.


def _whole_models(source: ProgramSource) -> Iterator[SourceEdit]:
    """An optimizer of all parameters, if what it leaves out was never trained: pretrained weights stay as they are."""
    optimizer = source.report.profile.optimizer
    if source.untrained and optimizer is not None:
        yield from whole_model_edits(optimizer.name, [source.file])


# F109: inputs that are multiplied by a number.


def _unscaled_inputs(source: ProgramSource) -> Iterator[SourceEdit]:
    """The number by which the argument of the only such call in the training loop is multiplied or divided, deleted."""
    file, line = source.file, source.line_of("the loss")
    loops = [] if line is None else [node for node in _loops(file.tree) if _is_around(node, line)]
    if not loops:
        return
    inner = max(loops, key=lambda node: node.lineno)
    calls = [
        node for node in ast.walk(inner) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    for argument in (each for call in calls for each in call.args):
        if (
            isinstance(argument, ast.BinOp)
            and isinstance(argument.op, ast.Mult | ast.Div)
            and isinstance(argument.right, ast.Constant)
        ):
            says = f"Give {file.segment(argument.left)} to the model as it is in {{place}}"
            yield file.replaced(*span(file, argument), file.segment(argument.left), says)


# I309: probabilities where the loss expects logits.


def _raw_logits(source: ProgramSource) -> Iterator[SourceEdit]:
    """The softmax, sigmoid or other activation before the loss, deleted where it is called.

    What a program computes outside its model is replayed without its lines. Then the only such call in the loop, or in
    the function, around the loss is meant.
    """
    file, line = source.file, source.line_of("the loss")
    facts, trace = source.report.profile.facts, source.report.trace
    behind = facts.head.behind if facts is not None and facts.head is not None else ""
    ops = () if trace is None else trace.ops
    op = next((each for each in reversed(ops) if each.name == behind), None)
    if op is None:
        return
    if op.source is not None:
        line = op.source.line if op.source.file == file.name else None
        lines = None if line is None else range(line, line + 1)
    else:
        lines = None if line is None else _lines_around(file, line)
    if lines is not None:
        yield from deleted_calls(file, op, behind, lines)


def _lines_around(file: SourceFile, line: int) -> range:
    """The lines of the innermost loop around a line, or else of the function, or of the file."""
    loops = [node for node in _loops(file.tree) if _is_around(node, line)]
    node = max(loops, key=lambda each: each.lineno) if loops else _scope(file.tree, line)
    if isinstance(node, ast.For | ast.FunctionDef | ast.AsyncFunctionDef):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(1, len(file.text.splitlines()) + 1)


PROGRAM_EDITS: dict[str, Callable[[ProgramSource], Iterator[SourceEdit]]] = {
    "B203": _deleted_cuts,
    "D901": _batch_first,
    "D909": _signs_of_loss,
    "D911": _shuffled_orders,
    "D914": _whole_models,
    "F109": _unscaled_inputs,
    "I309": _raw_logits,
    "T816": _cleared_gradients,
}
"""By the code of a finding, the changes that it can mean."""
