"""Edits of a recipe as changes of the user's own source: a call that is deleted, a learning rate that is rewritten.

The trace knows the line that makes each call, and the syntax tree of that file knows what stands there. An edit becomes
a change of the source only if exactly one place can be meant; every other edit stays code that is added.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from leadline.fixes._engine.fix import FixContext
from leadline.fixes._engine.lookup import last_op
from leadline.fixes._engine.source_files import (
    SourceFile,
    called_name,
    calls_in,
    imports_name,
    only,
    read_source,
    span,
)
from leadline.records import Edit, Op, SourceEdit
from leadline.tracer.sources import repository_root

SEQUENTIAL = "torch.nn.modules.container.Sequential"
PRODUCTS = frozenset(["matmul", "bmm", "einsum"])
"""Functions that multiply queries by keys; `@` does the same."""


def edit_source(edit: Edit, context: FixContext, files: Sequence[Path] = ()) -> SourceEdit | None:
    """The edit as a change of the user's source; None if no place, or more than one, can be meant.

    `files` are those in which the model and its optimizer may be built, besides the files of its classes.
    """
    if edit.action == "rate" and not edit.where:
        return only(_rate_edits(edit, context, _read_files(context, files)))
    if edit.action == "decay" and not edit.options.get("spared"):
        return only(_decay_edits(edit, context, _read_files(context, files)))
    if edit.action == "train":
        optimizer = context.trace.optimizer
        return (
            None
            if optimizer is None
            else only(whole_model_edits(optimizer.name, _read_files(context, files)))
        )
    if edit.action == "register":
        return only(_registered_lists(edit, _read_files(context, files)))
    if edit.action in ("last-axis", "log-softmax"):
        return only(_loss_edits(edit, context))
    if edit.action == "shift":
        return only(_shift_edits(edit, context, _read_files(context, files)))
    if edit.action == "scale-call":
        return only(_scaled_products(edit, context))
    if edit.options.get("to") != "identity":
        return None
    if edit.action == "reroute":
        op = last_op(context, str(edit.options.get("calls")), edit.where)
        return None if op is None else only(_deleted_calls(context, op, op.name))
    if edit.action == "swap":
        parent, _, name = edit.where.rpartition(".")
        op = last_op(context, None, edit.where)
        if op is not None and _is_users(context, parent):
            return only(_deleted_calls(context, op, name))
        return only(_deleted_elements(context, edit.where, _read_files(context, files)))
    return None


def apply_source_edits(text: str, edits: Sequence[SourceEdit]) -> str:
    """The text of a file with these changes of it."""
    rows = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda each: -each.source.line):
        first = edit.source.line - 1
        rows[first : first + len(edit.old.splitlines())] = edit.new.splitlines(keepends=True)
    return "".join(rows)


def _is_users(context: FixContext, path: str) -> bool:
    """Whether the module at a path has its code in the user's repository."""
    return any(each.path == path and each.source is not None for each in context.trace.modules)


def _read_files(context: FixContext, files: Sequence[Path]) -> list[SourceFile]:
    root = repository_root()
    written = [root / each.source.file for each in context.trace.modules if each.source is not None]
    paths = dict.fromkeys(path.resolve() for path in (*files, *written))
    return [file for path in paths if (file := read_source(path, root)) is not None]


# A call that is replaced by its own input.


def _deleted_calls(context: FixContext, op: Op, name: str) -> Iterator[SourceEdit]:
    """Deletions of the call of that name in the line that made the op."""
    root = repository_root()
    file = None if op.source is None else read_source(root / op.source.file, root)
    if file is not None and op.source is not None:
        yield from deleted_calls(file, op, name, range(op.source.line, op.source.line + 1))


def deleted_calls(file: SourceFile, op: Op, name: str, lines: range) -> Iterator[SourceEdit]:
    """Deletions of calls of that name around one of these lines, of which one made the op."""
    is_method = op.callable.startswith("torch.Tensor.") and op.name == name
    for call in calls_in(file.tree):
        last = call.end_lineno or call.lineno
        if called_name(call) != name or last < lines.start or call.lineno >= lines.stop:
            continue
        kept = _input_of(call, is_method=is_method)
        if kept is not None:
            start, end = span(file, call)
            yield file.replaced(start, end, file.segment(kept), f"Delete the {name} in {{place}}")


def _input_of(call: ast.Call, *, is_method: bool) -> ast.expr | None:
    """The tensor that a call reads: the object of a method, otherwise the first argument."""
    if is_method and isinstance(call.func, ast.Attribute):
        return call.func.value
    named = [each.value for each in call.keywords if each.arg == "input"]
    first = call.args[0] if call.args else next(iter(named), None)
    return None if isinstance(first, ast.Starred) else first


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
                if isinstance(each, ast.Call) and called_name(each) == kind and len(elements) > 1:
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
        prefix = "nn" if imports_name(file.tree, "nn") else "torch.nn"
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, literals):
                continue
            target = node.targets[0]
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.attr == name
            ):
                start, end = span(file, node.value)
                new = f"{prefix}.{kind}({file.segment(node.value)})"
                what = f"Put {file.segment(target)} into an nn.{kind}"
                yield file.replaced(start, end, new, f"{what} in {{place}}")


def whole_model_edits(optimizer: str, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Optimizers of this name that are built from a part of a model, or from a new one, built from all of the model."""
    for file in files:
        for call in calls_in(file.tree):
            if called_name(call) != optimizer or not call.args:
                continue
            root = _root_of_parameters(file.tree, call.args[0])
            if root is not None:
                start, end = span(file, call.args[0])
                says = f"Give all parameters of {root} to {optimizer} in {{place}}"
                yield file.replaced(start, end, f"{root}.parameters()", says)


def _root_of_parameters(tree: ast.Module, node: ast.expr) -> str | None:
    """The name "model" for `model.head.parameters()`, and for `Model().parameters()` where `model = Model()`.

    None for anything else, also for `model.parameters()`.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args:
        return None
    part = node.func.value
    if node.func.attr != "parameters" or isinstance(part, ast.Name):
        return None
    if isinstance(part, ast.Call):
        return _only_instance(tree, called_name(part))
    while isinstance(part, ast.Attribute | ast.Subscript):
        part = part.value
    return part.id if isinstance(part, ast.Name) and part.id != "self" else None


def _only_instance(tree: ast.Module, kind: str) -> str | None:
    """The only name to which a new object of a class is assigned."""
    names = [
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and called_name(node.value) == kind
    ]
    return names[0] if len(names) == 1 else None


# The call of a loss, with another argument or another name.


def _loss_calls(
    context: FixContext, files: Sequence[SourceFile]
) -> Iterator[tuple[str, SourceFile, ast.Call]]:
    """Names of loss ops, and the calls that made them; of an op whose line is not known, all that can have made it."""
    root = repository_root()
    ops = dict.fromkeys((op.name, op.source) for op in context.trace.ops if op.kind == "loss")
    for name, source in ops:
        if source is None:
            yield from (
                (name, file, call)
                for file in files
                for call in calls_in(file.tree)
                if called_name(call) == name or _is_criterion(file.tree, call, name)
            )
            continue
        own_file = read_source(root / source.file, root)
        for call in () if own_file is None else calls_in(own_file.tree):
            is_here = call.lineno <= source.line <= (call.end_lineno or call.lineno)
            if called_name(call) == name and is_here and own_file is not None:
                yield name, own_file, call


def _is_criterion(tree: ast.Module, call: ast.Call, op: str) -> bool:
    """Whether the called name was assigned the loss module of an op: `nn.CrossEntropyLoss()` for cross_entropy."""
    plain = op.replace("_", "").replace("binarycrossentropy", "bce").removesuffix("loss")
    return any(
        isinstance(value, ast.Call) and called_name(value).lower() == f"{plain}loss"
        for value in _assigned(tree, ast.unparse(call.func))
    )


def _loss_edits(edit: Edit, context: FixContext) -> Iterator[SourceEdit]:
    """Changes of the one call of a loss op in the user's code.

    Where its line is not known, the output of the model changes instead: what evaluates it reads the same output.
    """
    for name, file, call in _loss_calls(context, ()):
        if edit.action == "last-axis" and call.args and not isinstance(call.args[0], ast.Starred):
            start, end = span(file, call.args[0])
            new = f"{_operand(file, call.args[0])}.{edit.options['kind']}(-1)"
            yield file.replaced(start, end, new, f"Write {new} in {{place}}")
        elif edit.action == "log-softmax" and called_name(call) == name == "nll_loss":
            start, end = span(file, call.func)
            new = file.segment(call.func).replace("nll_loss", "cross_entropy")
            yield file.replaced(start, end, new, f"Call {new} on the logits in {{place}}")


def _shift_edits(edit: Edit, context: FixContext, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Calls of a loss of classes in which the slices of logits and targets are added (step -1) or removed (step 1)."""
    axis, steps = edit.options.get("axis"), edit.options.get("steps")
    before = ":, " if axis == 1 else ""
    slices = (f"[{before}:-1]", f"[{before}1:]")
    for _, file, call in _loss_calls(context, files):
        given = call.args[:2]
        roots = [_sliced_root(each) for each in given]
        if len(given) < 2 or any(isinstance(each, ast.Starred) for each in given) or steps not in (-1, 1):
            continue
        texts = [file.segment(root) for root in roots]
        if steps == 1:
            if not all(text.endswith(end) for text, end in zip(texts, slices, strict=True)):
                continue
            shifted = [text.removesuffix(end) for text, end in zip(texts, slices, strict=True)]
            says = "Compare whole sequences in {place}: the targets are shifted already"
        else:
            if any(isinstance(root, ast.Subscript) for root in roots):
                continue
            shifted = [f"{text}{end}" for text, end in zip(texts, slices, strict=True)]
            says = f"Compare {shifted[0]} with {shifted[1]} in {{place}}"
        arguments = [
            _with_root(file, each, root, text) for each, root, text in zip(given, roots, shifted, strict=True)
        ]
        start, end = span(file, given[0])[0], span(file, given[1])[1]
        between = file.text[span(file, given[0])[1] : span(file, given[1])[0]]
        yield file.replaced(start, end, between.join(arguments), says)


def _sliced_root(node: ast.expr) -> ast.expr:
    """The tensor on which methods are called: `logits[:, :-1]` in `logits[:, :-1].flatten(0, 1).float()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _with_root(file: SourceFile, node: ast.expr, root: ast.expr, text: str) -> str:
    """The source of an argument with another root. A slice is not contiguous, so `view` becomes `reshape`."""
    (start, end), inner = span(file, node), span(file, root)
    methods = file.text[inner[1] : end].replace(".view(", ".reshape(")
    return file.text[start : inner[0]] + text + methods


# The product of queries and keys, with a factor.


def _scaled_products(edit: Edit, context: FixContext) -> Iterator[SourceEdit]:
    """The products in the line of the scaled call, with its factor; its width is known from the factor."""
    factor, calls, place = (edit.options.get(name) for name in ("factor", "calls", "place"))
    alike = [
        op
        for op in context.trace.ops
        if op.module == edit.where and op.callable.rpartition(".")[2] == calls and op.call == 0
    ]
    if not isinstance(factor, float) or not isinstance(place, int) or place >= len(alike):
        return
    source, root = alike[place].source, repository_root()
    file = None if source is None else read_source(root / source.file, root)
    if file is None or source is None:
        return
    whole = {id(node.value) for node in ast.walk(file.tree) if isinstance(node, ast.Assign | ast.Return)}
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.expr)
            and _is_product(node)
            and node.lineno <= source.line <= (node.end_lineno or 0)
        ):
            start, end = span(file, node)
            new = f"{file.segment(node)} * {round(factor**-2)} ** -0.5"
            new = new if id(node) in whole else f"({new})"
            yield file.replaced(start, end, new, "Scale the attention logits in {place}")


def _is_product(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and called_name(node) in PRODUCTS


def _operand(file: SourceFile, node: ast.expr) -> str:
    """The source of an expression, in parentheses where a method call would bind more tightly."""
    text = file.segment(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


# A learning rate or a weight decay that is rewritten.


def _rate_edits(edit: Edit, context: FixContext, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Changes of the number that is given as `lr`, or as the second argument of the optimizer."""
    optimizer, factor = context.trace.optimizer, edit.options.get("factor")
    if optimizer is None or not isinstance(factor, int | float):
        return
    rates = {group.lr for group in optimizer.groups}
    rate = rates.pop()
    if rates or rate is None:
        return
    for file in files:
        given = [each.value for call in calls_in(file.tree) for each in call.keywords if each.arg == "lr"]
        given += [
            call.args[1]
            for call in calls_in(file.tree)
            if called_name(call) == optimizer.name and len(call.args) > 1
        ]
        new = f"{rate * factor:.4g}"
        yield from _number_edits(file, given, rate, new, f"Set the learning rate to {new} in {{place}}")


def _decay_edits(edit: Edit, context: FixContext, files: Sequence[SourceFile]) -> Iterator[SourceEdit]:
    """Changes of the number that is given as `weight_decay`."""
    optimizer, most = context.trace.optimizer, edit.options.get("most")
    decays = {group.weight_decay for group in optimizer.groups} if optimizer is not None else set()
    if len(decays) != 1 or not isinstance(most, int | float):
        return
    decay = decays.pop()
    for file in files:
        given = [
            each.value for call in calls_in(file.tree) for each in call.keywords if each.arg == "weight_decay"
        ]
        new = f"{most:.4g}"
        yield from _number_edits(file, given, decay, new, f"Set the weight decay to {new} in {{place}}")


def _number_edits(
    file: SourceFile, given: Sequence[ast.expr], old: float, new: str, says: str
) -> Iterator[SourceEdit]:
    """Changes of each number among the expressions that is `old`, each once."""
    numbers = {id(node): node for value in given for node in _numbers(file.tree, value)}
    for node in numbers.values():
        if node.value == old:
            yield file.replaced(*span(file, node), new, says)


def _numbers(tree: ast.Module, value: ast.expr) -> Iterator[ast.Constant]:
    """The number itself, or the only one that its name is assigned or has as the default of an argument."""
    if isinstance(value, ast.Name):
        named = [*_assigned(tree, value.id), *_defaults(tree, value.id)]
        value = named[0] if len(named) == 1 else value
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        yield value


def _assigned(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [name]:
            yield node.value


def _defaults(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """What a parameter of this name has as its default, in each function that has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = [
                *zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            yield from (default for arg, default in pairs if arg.arg == name and default is not None)
