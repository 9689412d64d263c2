"""`leadline fix`: search for edits after which a model trains, and prove them."""

from __future__ import annotations

import ast
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace as struct_replace

from leadline.cli.exit_codes import FAILED, FINE, FOUND, UNDECIDED
from leadline.cli.options import (
    Progress,
    color_option,
    detail_options,
    examples,
    file_option,
    html_option,
    output_option,
    progress_bar,
    steps_option,
)
from leadline.cli.output import emit, explain_crash, look_for, say
from leadline.cli.program_repair import repair_program
from leadline.cli.program_target import CommandOnPrograms, is_program, program_arguments
from leadline.errors import LeadlineError
from leadline.fixes import all_fixes
from leadline.fixes._engine.source_edits import apply_source_edits
from leadline.records.repair import RepairReport, SourceEdit
from leadline.report.look import REPAIR_FORMAT_NAMES
from leadline.report.snippet import put_together, split_imports
from leadline.runner.program import Program
from leadline.targets import load, locate, move_case, show_target, source_file
from leadline.tracer.sources import repository_root

if TYPE_CHECKING:
    from leadline.case import Case
    from leadline.fixes._engine.repair import Repair


BUDGET = "60s"
DEMO = "leadline.lab.demo:deep_mlp"


@click.command(
    cls=CommandOnPrograms,
    epilog=examples(
        "leadline fix train.py:make_case",
        "leadline fix train.py -- --epochs 3",
        "leadline fix train.py --steps 64 --diff",
        "leadline fix train.py:make_case --budget 5m --diff | git apply",
        "leadline fix my.package:make_case --recipe recipe.json --save repaired.safetensors",
        "leadline fix train.py:make_case --format json --output repair.json --html repair.html",
        f"leadline fix {DEMO}",
    ),
)
@click.argument("target")
@click.option(
    "--budget",
    default=BUDGET,
    show_default=True,
    help="Processor time to spend (on a GPU: time), for instance 60s, 5m or 1h.",
)
@click.option("--diff", is_flag=True, help="Print the change to your code instead of the report.")
@file_option("--save", text="Write the repaired weights to this file (safetensors).")
@file_option("--recipe", text="Write the edits to this file, for leadline.apply(model, recipe).")
@click.option(
    "--format",
    "form",
    type=click.Choice(REPAIR_FORMAT_NAMES),
    default="text",
    show_default=True,
    help="Format of the result; it never changes the exit code.",
)
@output_option
@html_option
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of torch before the factory runs.",
)
@steps_option
@click.option("--device", help="Move model and batch there, for instance cuda.")
@click.option("--dtype", help="Change floating-point tensors to this type, for instance bfloat16.")
@detail_options
@color_option
@click.pass_context
def fix(
    context: click.Context,
    target: str,
    budget: str,
    diff: bool,
    save: Path | None,
    recipe: Path | None,
    form: str,
    output: Path | None,
    page: Path | None,
    seed: int,
    steps: int,
    device: str | None,
    dtype: str | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Search for changes after which a model trains, and prove each of them.

    TARGET is as for `leadline check`. Each fix is applied to a copy, which is traced again and then trained for a short
    while next to the untreated model, with the same batches, seeds and optimizer. It is verified only if it ends lower.
    Your files are not changed: --diff prints the change, --recipe writes the edits, and --save writes the weights.

    A program is also changed in its own lines where a finding means exactly one place (the sign of the loss, a
    `detach`, with --steps a missing `zero_grad`). Such a change is proved by running the changed program again.

    Exit codes: 0 the model trains after the fix, or needed none; 1 not repaired; 2 wrong usage or error; 3 undecided.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    if not is_program(target):
        if steps:
            raise click.UsageError("--steps is for programs: only they have a loop to follow")
        locate(target)
    elif device or dtype:
        raise click.UsageError("--device and --dtype are for factories: a program builds its own model")
    try:
        with progress_bar(quiet=quiet) as progress:
            repair = (
                repair_program(
                    Program(target=target, arguments=program_arguments(context)),
                    budget,
                    steps=steps,
                    progress=progress,
                )
                if is_program(target)
                else repair_target(target, budget, seed, device, dtype, progress=progress)
            )
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    # Imported here because the renderers are slow to import, and --help needs none.
    from leadline.report.formats import REPAIR_FORMATS

    record = named_after(target, repair.report)
    if page is not None:
        emit(REPAIR_FORMATS["html"](record, look), page)
    if recipe is not None:
        emit(repair.recipe.to_json() + "\n", recipe)
    if save is not None:
        _save(repair, save)
    if diff and not (repair.code or record.source):
        outcome = REPAIR_FORMATS["text"](repair.report, replace(look, detail="verdict", color=False))
        say(
            f"No diff, because there is no change to make: {outcome.strip()}\nWithout --diff, you see what was tried."
        )
    if diff:
        emit(diff_of(target, record), output)
    else:
        after = diff_for_agents(target, record) if form == "agent" else ""
        emit(REPAIR_FORMATS[form](record, look) + after, output)
    return exit_code(record)


def named_after(target: str, report: RepairReport) -> RepairReport:
    """The report, which knows its target now."""
    return struct_replace(report, before=struct_replace(report.before, target=target))


def diff_for_agents(target: str, report: RepairReport) -> str:
    """The last key of `--format agent`: the change as a diff, so that nothing is searched twice."""
    text = diff_of(target, report) if report.code or report.source else ""
    return f"apply: git apply, with the lines below\ndiff:\n{text}" if text else ""


def exit_code(report: RepairReport) -> int:
    """The exit code; it depends on what came of the repair, never on the format."""
    if report.result == "undecided" or report.verdict_after == "undecided":
        return UNDECIDED
    return FINE if report.ok else FOUND


def repair_target(
    target: str,
    budget: str | None,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    progress: Progress | None = None,
) -> Repair:
    """Load and repair a target. What its code prints goes to stderr, so that stdout holds only the result."""
    import torch  # torch-free start

    from leadline.fixes._engine.repair import repair

    with redirect_stdout(sys.stderr), show_target(target):

        def build() -> Case:
            torch.manual_seed(seed)
            return move_case(load(target), device=device, dtype=dtype)

        case = build()
        path, _ = source_file(target)
        files = () if path is None else (path,)
        return repair(case, budget, fixes=all_fixes(), progress=progress, factory=build, files=files)


def _save(repair: Repair, path: Path) -> None:
    """Write every entry of the state dict as a separate tensor: safetensors refuses tensors that share memory."""
    from safetensors.torch import save_file  # torch-free start

    state = {name: value.detach().clone().contiguous() for name, value in repair.model.state_dict().items()}
    try:
        save_file(state, path, metadata={"format": "pt", "leadline.recipe": repair.recipe.to_json()})
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None


# The diff of the user's own code.

REPLAYED_MODEL = "ReplayedModel"
"""The model of a program that calls several modules, or one in a way that a Case cannot express."""
# Derived: from the order of the fields of a Case.
FIELD_POSITIONS = {"model": 0, "optimizer": 4}
"""Positions in the tuple of a Case's fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryReturn:
    """Where code is added, before the only return of a factory, and the names of model and optimizer there."""

    line: int
    """First line of the return statement, from 1; of a program the line that follows, and `last` is before it."""
    last: int
    indent: str
    names: dict[str, str]
    """Expressions for "model" and, if there is one, "optimizer"."""
    value: str
    """The returned expression, if it must be given a name first; "" if not."""


def diff_of(target: str, report: RepairReport) -> str:
    """A diff for `git apply` or `patch -p1`: changed lines, and code that is added.

    Code is added before the return of a factory, and in a program after the statement that makes its optimizer. If the
    factory has no single, final return, or the program no single such statement, the code alone is printed instead,
    and stderr says why.
    """
    changes: dict[Path, list[SourceEdit]] = {}
    for change in report.source:
        changes.setdefault((repository_root() / change.source.file).resolve(), []).append(change)
    changed = {path: apply_source_edits(_read(path), each) for path, each in changes.items()}
    code = report.code
    if changed:
        code = put_together(each.other_code for each in report.outcomes if each.kept)
    if code:
        path, attribute = (Path(target), "") if is_program(target) else source_file(target)
        text = "" if path is None else changed.get(path.resolve()) or _read(path)
        place = _program_place(text, report) if is_program(target) else _factory_return(text, attribute)
        if path is not None and place is not None:
            changed[path.resolve()] = patched(text, place, code)
        elif changed:
            say(f"the diff leaves out this code, which belongs between the model and the loop:\n{code}")
        else:
            say(f"no diff: {PROGRAM_WITHOUT_PLACE if is_program(target) else FACTORY_WITHOUT_PLACE}")
            return code + "\n"
    return "".join(_file_diff(path, text) for path, text in changed.items())


PROGRAM_WITHOUT_PLACE = (
    "no single statement of the program makes an optimizer from the parameters of one model; add this code between the "
    "model and the loop"
)
FACTORY_WITHOUT_PLACE = "the factory is not a function with a single, final return; add this code to yours"


def _program_place(text: str, report: RepairReport) -> FactoryReturn | None:
    """After the only statement that makes the optimizer from `model.parameters()`, where both have names."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    if report.before.profile.model == REPLAYED_MODEL:  # its parts have other names in the program
        return None
    optimizer = report.before.profile.optimizer
    kind = "" if optimizer is None else optimizer.name
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    made = [(node, names) for node in statements if (names := _made_optimizer(node, kind))]
    if len(made) != 1:
        return None
    node, names = made[0]
    used = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    if any(name != own and name in used for name, own in names.items()):  # an alias would overwrite it
        return None
    end = node.end_lineno or node.lineno
    return FactoryReturn(line=end + 1, last=end, indent=_indent(text, node), names=names, value="")


def _indent(text: str, node: ast.stmt) -> str:
    """The white space before the first statement of the line in which one begins."""
    line = text.splitlines()[node.lineno - 1]
    return line[: len(line) - len(line.lstrip())]


def _made_optimizer(node: ast.Assign, kind: str) -> dict[str, str]:
    """The names of model and optimizer in `optimizer = Adam(model.parameters(), ...)`; {} for anything else."""
    if not (isinstance(node.value, ast.Call) and node.value.args):
        return {}
    target, call = node.targets[0], node.value
    parameters = re.fullmatch(r"(\w+)\.parameters\(\)", ast.unparse(call.args[0]))
    if (
        not isinstance(target, ast.Name)
        or ast.unparse(call.func).rpartition(".")[2] != kind
        or not parameters
    ):
        return {}
    return {"model": parameters[1], "optimizer": target.id}


def _file_diff(path: Path, after: str) -> str:
    name = _diff_name(path)
    rows = _read(path).splitlines(keepends=True), after.splitlines(keepends=True)
    lines = unified_diff(*rows, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _factory_return(text: str, attribute: str) -> FactoryReturn | None:
    try:
        return _find_return(ast.parse(text), text, attribute)
    except (SyntaxError, ValueError):
        return None


def patched(text: str, place: FactoryReturn, code: str) -> str:
    """The file with the code before the factory's return, and its imports after the other imports."""
    imports, body = split_imports(code)
    rows = text.splitlines(keepends=True)
    aliases = [
        f"{name} = {expression}"
        for name, expression in place.names.items()
        if name != expression and name in code
    ]
    if "optimizers" in code and place.names.get("optimizer") not in (None, "optimizers"):
        aliases = [
            *(each for each in aliases if not each.startswith("optimizer ")),
            f"optimizers = {place.names['optimizer']}",
        ]
    lines = [*([f"made = {place.value}"] if place.value else []), *aliases, *body]
    inside = [f"{place.indent}{line}\n" if line else "\n" for line in lines]
    ending = [f"{place.indent}return made\n"] if place.value else rows[place.line - 1 : place.last]
    rows[place.line - 1 : place.last] = [*inside, *ending]
    tree = ast.parse(text)
    known = {each for node in tree.body for each in _imports(node)}
    end = _end_of_imports(tree)
    rows[end:end] = [
        f"{line}\n" for line in imports if not known.issuperset(_imports(ast.parse(line).body[0]))
    ]
    return "".join(rows)


def _imports(node: ast.stmt) -> list[tuple[str, str, str | None]]:
    """What an import statement imports: module, name in it, alias; [] for any other statement."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    return [(module, each.name, each.asname) for each in node.names]


def _find_return(tree: ast.Module, text: str, attribute: str) -> FactoryReturn | None:
    """None unless the factory is a function of the file whose last statement is its only return."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute]
    if len(functions) != 1:
        return None
    returns = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Return)]
    last = functions[0].body[-1]
    if len(returns) != 1 or returns[0] is not last or returns[0].value is None:
        return None
    return _describe_return(returns[0], returns[0].value, text)


def _describe_return(node: ast.Return, value: ast.expr, text: str) -> FactoryReturn | None:
    parts = _case_parts(value)
    if parts is None:
        return None
    are_names = all(isinstance(each, ast.Name) for each in parts.values())
    accesses = _accesses(value, parts)
    return FactoryReturn(
        line=node.lineno,
        last=node.end_lineno or node.lineno,
        indent=_indent(text, node),
        names={name: ast.unparse(each) for name, each in parts.items()} if are_names else accesses,
        value="" if are_names else ast.get_source_segment(text, value) or ast.unparse(value),
    )


def _case_parts(value: ast.expr) -> dict[str, ast.expr] | None:
    """The expressions for model and optimizer in a Case, a tuple or a dict; None for anything else.

    Where `*` or `**` hides them, both are the whole value: they are read from it once it has a name.
    """
    if isinstance(value, ast.Dict):
        items = zip(value.keys, value.values, strict=True)
        pairs = {key.value: item for key, item in items if isinstance(key, ast.Constant)}
        parts = {name: pairs[name] for name in FIELD_POSITIONS if name in pairs}
    elif isinstance(value, ast.Tuple) or (isinstance(value, ast.Call) and _is_case(value)):
        elements = value.elts if isinstance(value, ast.Tuple) else value.args
        if any(isinstance(each, ast.Starred) for each in elements):  # positions are known only when it runs
            return dict.fromkeys(FIELD_POSITIONS, value)
        parts = {name: elements[place] for name, place in FIELD_POSITIONS.items() if place < len(elements)}
        if isinstance(value, ast.Call):
            if any(each.arg is None for each in value.keywords):
                return dict.fromkeys(FIELD_POSITIONS, value)
            parts |= {each.arg: each.value for each in value.keywords if each.arg in FIELD_POSITIONS}
    else:
        return None
    return parts if "model" in parts else None


def _accesses(value: ast.expr, parts: dict[str, ast.expr]) -> dict[str, str]:
    """How the parts are read from the returned value once it is named `made`."""
    if isinstance(value, ast.Call):
        return {name: f"made.{name}" for name in parts}
    if isinstance(value, ast.Dict):
        return {name: f'made["{name}"]' for name in parts}
    return {name: f"made[{FIELD_POSITIONS[name]}]" for name in parts}


def _is_case(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] == "Case"


def _end_of_imports(tree: ast.Module) -> int:
    """Line of the last import at the top level, or else of the docstring."""
    ends = [node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if ends:
        return max(ends)
    first = tree.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) if is_text else 0


def _diff_name(path: Path) -> str:
    root = repository_root().resolve()
    return path.resolve().relative_to(root).as_posix() if path.resolve().is_relative_to(root) else path.name
