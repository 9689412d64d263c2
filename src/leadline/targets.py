"""Targets: load the Case that `path/file.py:factory` or `package.module:factory` names.

Torch is imported inside the functions that need it, so that a misspelled target is reported at once.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leadline.errors import InputError, LeadlineError, add_advice, has_advice
from leadline.records import Source
from leadline.records.forecast import AXES
from leadline.tracer.sources import find_source, repository_root, short_path, show_frame, user_frames

if TYPE_CHECKING:
    import torch

    from leadline.case import Case

FORM = "a target of the form path/file.py:factory or package.module:factory"
# Heuristic: names listed in an error message; so many fit on one or two lines.
MAX_LISTED_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a target is written: `attribute` of the file or module `place`, which may import from `folder`."""

    place: str
    attribute: str
    folder: Path
    is_file: bool


def locate(spec: str) -> Location:
    """Return where `spec` points to. This runs no code, so a misspelled file is reported before torch is imported."""
    place, colon, attribute = spec.rpartition(":")
    if not (colon and place and attribute):
        raise InputError(expected=FORM, got=repr(spec), fix=_name_a_factory(spec))
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    folder = _folder(place) if is_file else Path.cwd()
    return Location(place=place, attribute=attribute, folder=folder, is_file=is_file)


def load(spec: str) -> Case:
    """Return the Case that `spec` names. Exceptions of the user's file or factory are passed on with a note.

    While the target is loaded, the file's folder (for a module, the working directory) is on `sys.path`, so that the
    target can import the files next to it.
    """
    return load_factory(spec)()


def load_factory(spec: str) -> Callable[[], Case]:
    """Import the target now and return a function that makes its Case."""
    target = locate(spec)
    factory = _import_target(target)

    def make() -> Case:
        with _importable(target.folder), _no_exit(target.place), _explain_factory_error(spec):
            return _make(factory, spec)

    return make


@contextmanager
def show_target(spec: str) -> Iterator[None]:
    """Add to an error the line where the target is written, unless the user's own frames are in its traceback."""
    try:
        yield
    except Exception as error:
        if not user_frames(error):
            from_cause = user_frames(error.__cause__) if error.__cause__ is not None else []
            place = show_frame(from_cause[-1]) if from_cause else _written_at(spec)
            if place:
                error.add_note(place)
        raise


def _written_at(spec: str) -> str:
    """File, line and source line of what a factory returns (or of its definition); "" if they cannot be found."""
    try:
        path, attribute = source_file(spec)
        text = "" if path is None else path.read_text(encoding="utf-8")
        node = _definition(ast.parse(text), attribute.partition(".")[0])
    except (LeadlineError, OSError, SyntaxError, ValueError):
        return ""
    if path is None or node is None:
        return ""
    returns = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
    line = max((each.lineno for each in returns), default=node.lineno)
    return f"{short_path(str(path))}:{line} in {attribute}\n    {text.splitlines()[line - 1].strip()}"


def _definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """The last statement at the top level of a file that defines `name`."""
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(each, ast.Name) and each.id == name for each in targets):
            return node
    return None


@contextmanager
def _explain_factory_error(spec: str) -> Iterator[None]:
    with _explain_error(f"the factory {spec} was called without arguments and raised this error", spec):
        yield


@contextmanager
def _explain_error(known: str, spec: str) -> Iterator[None]:
    """Add a note to an error of the user's file or factory."""
    try:
        yield
    except LeadlineError:
        raise
    except Exception as error:
        if not has_advice(error):
            add_advice(error, known, _advice(error, spec))
        raise


def _advice(error: Exception, spec: str) -> str:
    if isinstance(error, ModuleNotFoundError):
        return (
            f"install {error.name}, or run leadline where it is installed, from the folder that contains it"
        )
    if isinstance(error, OSError) and error.filename:
        return f"check the path {error.filename}: relative paths begin at the working directory, {Path.cwd()}"
    return f"change the line above until {spec.rpartition(':')[2]}() runs in Python on its own"


def is_config(spec: str) -> bool:
    """Whether the target is a Hugging Face config rather than a factory."""
    return spec.endswith(".json")


def factory_source(spec: str) -> Source | None:
    """Return file and line of the factory of a loaded target; None if they are outside the user's repository."""
    target = locate(spec)
    module = sys.modules[_private_name(Path(target.place)) if target.is_file else target.place]
    root = repository_root()
    return find_source(_attribute(module, target.attribute, target.place), root) or find_source(module, root)


def source_file(spec: str) -> tuple[Path | None, str]:
    """Return the file in which a target is written (None if unknown) and the target's name in it."""
    target = locate(spec)
    if target.is_file:
        return Path(target.place).resolve(), target.attribute
    module = sys.modules.get(target.place)
    file = getattr(module, "__file__", None)
    return (Path(file) if file else None), target.attribute


def load_family(spec: str, axes: Collection[str] = ()) -> Case | Callable[..., Any]:
    """Return the function of depth, width or batch that `spec` names; it can import its neighbors when called.

    A factory without arguments, or a Case, is one network rather than a family; then its Case is returned, unless the
    caller varies some of its `axes`.
    """
    target = locate(spec)
    factory = _import_target(target)
    if not _is_family(factory, spec, axes):
        return load_factory(spec)()

    @wraps(factory)  # its signature tells which axes it takes
    def build(*args: Any, **kwargs: Any) -> Any:
        with _importable(target.folder), _no_exit(target.place), _explain_factory_error(spec):
            return factory(*args, **kwargs)

    return build


def _import_target(target: Location) -> Any:
    known = f"{target.place} was imported and raised this error"
    with (
        _importable(target.folder),
        _no_exit(target.place),
        _explain_error(known, f"{target.place}:{target.attribute}"),
    ):
        module = _import_file(Path(target.place)) if target.is_file else _import_module(target.place)
        return _attribute(module, target.attribute, target.place)


def _name_a_factory(spec: str) -> str:
    place = spec.rstrip(":")
    names = _functions_in(Path(place)) if place.endswith(".py") else []
    example = names[0] if names else "factory"
    return (
        f"name the function that returns the model and its batch, for example {place or 'file.py'}:{example}"
    )


def _functions_in(path: Path) -> list[str]:
    """Return the names of the public functions of a file, without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


def _folder(place: str) -> Path:
    """Return the folder of the file, or raise InputError with a suggestion if there is no such file."""
    path = Path(place)
    if path.is_file():
        return path.resolve().parent
    neighbors = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, neighbors, n=1)
    if close:
        fix = f"did you mean {path.parent / close[0]}?"
    elif neighbors:
        fix = f"choose one of the Python files in {path.parent.resolve()}: {_listed(neighbors)}"
    else:
        fix = f"check the path; it is relative to {Path.cwd()}"
    raise InputError(expected="a Python file", got=f"{place!r}, which does not exist", fix=fix)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _no_exit(place: str) -> Iterator[None]:
    """Turn SystemExit into an error: a script that exits with 0 must not pass as a model without findings."""
    try:
        yield
    except SystemExit as stop:
        raise InputError(
            expected="a file that can be imported and a factory that returns",
            got=f"{place!r}, which ended the program (SystemExit, code {stop.code!r})",
            fix='move what the script does under `if __name__ == "__main__":`',
        ) from stop


def _private_name(path: Path) -> str:
    """Return a module name that depends on the full path, so that two files called `model.py` do not collide."""
    return f"_leadline_target_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:12]}"


def _import_file(path: Path) -> ModuleType:
    name, path = _private_name(path), path.resolve()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(expected="a Python file", got=repr(str(path)), fix="give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the target exists, but something that it imports does not: that is the user's error
        raise InputError(
            expected="a module that can be imported",
            got=f"{name!r}: {error}",
            fix=f"check the spelling, install it, or name its file: path/to/{name.rpartition('.')[2]}.py:factory",
        ) from None


def _attribute(module: ModuleType, attribute: str, place: str) -> Any:
    owner: Any = module
    for part in attribute.split("."):
        if not hasattr(owner, part):
            raise InputError(
                expected=f"the name of a factory in {place}",
                got=f"{attribute!r}, which is not defined there",
                fix=_suggest_factory(owner, part),
            )
        owner = getattr(owner, part)
    return owner


def _suggest_factory(owner: Any, misspelled: str) -> str:
    home = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None)
    names = [
        name
        for name, item in vars(owner).items()
        if not name.startswith("_") and callable(item) and getattr(item, "__module__", home) == home
    ]
    close = get_close_matches(misspelled, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of: {_listed(names)}" if names else "write a function there that returns a leadline.Case"


def _listed(names: list[str]) -> str:
    rest = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _make(factory: Any, spec: str) -> Case:
    from torch import nn  # the user's file is checked before torch is imported

    from leadline.case import as_case

    if not callable(factory) or isinstance(factory, nn.Module):
        return as_case(factory)
    _check_no_required_arguments(factory, spec)
    return as_case(factory())


def _is_family(factory: Any, spec: str, axes: Collection[str]) -> bool:
    """Whether `factory` builds networks of several depths, or of the `axes` that the caller varies."""
    if not callable(factory) or hasattr(factory, "parameters"):  # a module is a model, not a factory
        return False
    required = _required_arguments(factory)
    if len(required) > 1 and not set(required) <= set(AXES):
        raise InputError(
            expected="a function of depth, width and batch, or some of them, that returns a leadline.Case",
            got=f"{spec!r}, which needs {', '.join(required)}",
            fix="write def build(depth): ... that calls it with the values you want",
        )
    return bool(required or axes) or "depth" in _arguments(factory)


def _arguments(factory: Any) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return []


def _required_arguments(factory: Any) -> list[str]:
    """Return the names of the arguments without a default."""
    try:
        signature = inspect.signature(factory)
    except (
        TypeError,
        ValueError,
    ):  # some callables written in C have no signature; the call itself will tell
        return []
    return [
        each.name
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _check_no_required_arguments(factory: Any, spec: str) -> None:
    if required := _required_arguments(factory):
        raise InputError(
            expected="a factory that can be called without arguments",
            got=f"{spec!r}, which needs {', '.join(required)}",
            fix="give these arguments defaults, or write a function that calls it with the values you want",
        )


def move_case(case: Case, *, device: str | None, dtype: str | None) -> Case:
    """Return `case` with its model, batch and loss on `device` and in `dtype`; integer tensors keep their dtype.

    The model is moved in place, as by `model.to`, so that the optimizer still holds its parameters.
    """
    if device is None and dtype is None:
        return case
    import torch  # only needed for this option
    from torch.utils._pytree import tree_map_only

    where, kind = _device(device), _dtype(dtype)

    def move_tensor(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(where, kind if tensor.is_floating_point() else None)

    def move_batch(batch: Any) -> Any:
        return tree_map_only(torch.Tensor, move_tensor, batch)

    return replace(
        case,
        model=case.model.to(where, kind),
        inputs=move_batch(case.inputs),
        targets=move_batch(case.targets),
        loss=case.loss.to(where, kind) if isinstance(case.loss, torch.nn.Module) else case.loss,
        batches=None if case.batches is None else _MovedBatches(case.batches, move_batch),
    )


@dataclass(frozen=True, slots=True)
class _MovedBatches:
    """Batches that are moved each time they are iterated over."""

    batches: Iterable[Any]
    move_batch: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.move_batch, self.batches)


def _device(name: str | None) -> torch.device | None:
    import torch  # see move_case

    if name is None:
        return None
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        raise InputError(
            expected="a device that this machine has, such as cpu, cuda or cuda:1",
            got=f"{name!r}: {str(error).splitlines()[0]}",
            fix="run `leadline doctor` to list the devices",
        ) from None


def _dtype(name: str | None) -> torch.dtype | None:
    import torch  # see move_case

    dtype = getattr(torch, name, None) if name else None
    if name is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    raise InputError(
        expected="a floating-point dtype of torch",
        got=repr(name),
        fix="use float32, float64, float16 or bfloat16",
    )
