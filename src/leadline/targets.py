"""Targets: from `path/file.py:factory` or `pkg.mod:factory` to the Case that the factory makes.

Torch is imported by the functions that need it, so that a mistyped target is answered at once.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leadline.errors import InputError
from leadline.records import Source
from leadline.tracer.sources import find_source, repository_root

if TYPE_CHECKING:
    import torch

    from leadline.case import Case

FORM = "a target of the form path/file.py:factory or package.module:factory"
LISTED = 8  # names in an error message: what fits on a line or two


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a target is: `attribute` of the file or module `place`, which may import what is in `folder`."""

    place: str
    attribute: str
    folder: Path
    is_file: bool


def locate(spec: str) -> Location:
    """Where `spec` points to, without running anything: a misspelt file is answered before torch is imported."""
    place, colon, attribute = spec.rpartition(":")
    if not (colon and place and attribute):
        raise InputError(expected=FORM, got=repr(spec), fix=_name_a_factory(spec))
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    folder = _folder(place) if is_file else Path.cwd()
    return Location(place=place, attribute=attribute, folder=folder, is_file=is_file)


def load(spec: str) -> Case:
    """The Case that `spec` names. What the user's file or factory raises comes out as it was raised.

    While the target is loaded, the file's folder (for a module: the working directory) is on `sys.path`, so that it
    can import its neighbours.
    """
    return postponed(spec)()


def postponed(spec: str) -> Callable[[], Case]:
    """The same in two steps: the target is imported now, and its factory runs when the result is called."""
    target = locate(spec)
    place = target.place
    with _importable(target.folder), _no_exit(place):
        module = _import_file(Path(place)) if target.is_file else _import_module(place)
        found = _find(module, target.attribute, place)

    def make() -> Case:
        with _importable(target.folder), _no_exit(place):
            return _make(found, spec)

    return make


def is_config(spec: str) -> bool:
    """A Hugging Face config instead of a factory."""
    return spec.endswith(".json")


def origin(spec: str) -> Source | None:
    """Where the factory of a target that has been loaded is written; None if not in the user's repository."""
    target = locate(spec)
    module = sys.modules[_private_name(Path(target.place)) if target.is_file else target.place]
    root = repository_root()
    return find_source(_find(module, target.attribute, target.place), root) or find_source(module, root)


def source_of(spec: str) -> tuple[Path | None, str]:
    """The file in which a target is written and what it is called there; None if no file is known."""
    target = locate(spec)
    if target.is_file:
        return Path(target.place).resolve(), target.attribute
    module = sys.modules.get(target.place)
    file = getattr(module, "__file__", None)
    return (Path(file) if file else None), target.attribute


def load_family(spec: str) -> Case | Callable[[int], Any]:
    """The function of a depth that `spec` names, which can import its file's neighbours when called.

    A factory without arguments, or a Case, is one network and not a family: then its Case.
    """
    target = locate(spec)
    place = target.place
    with _importable(target.folder), _no_exit(place):
        module = _import_file(Path(place)) if target.is_file else _import_module(place)
        found = _find(module, target.attribute, place)
        if not _takes_depth(found, spec):
            return _make(found, spec)

    def build(depth: int) -> Any:
        with _importable(target.folder), _no_exit(place):
            return found(depth)

    return build


def _name_a_factory(spec: str) -> str:
    place = spec.rstrip(":")
    names = _functions_in(Path(place)) if place.endswith(".py") else []
    example = names[0] if names else "factory"
    return (
        f"name the function that returns the model and its batch, for instance {place or 'file.py'}:{example}"
    )


def _functions_in(path: Path) -> list[str]:
    """Public functions of a file, read without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]


def _folder(place: str) -> Path:
    """The folder of a file that exists."""
    path = Path(place)
    if path.is_file():
        return path.resolve().parent
    neighbours = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, neighbours, n=1)
    if close:
        fix = f"did you mean {path.parent / close[0]}?"
    elif neighbours:
        fix = f"Python files in {path.parent.resolve()}: {_listed(neighbours)}"
    else:
        fix = f"check the path; it is looked up from {Path.cwd()}"
    raise InputError(expected="a Python file", got=f"{place!r}, which is not there", fix=fix)


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
    """A script that calls `sys.exit(0)` when imported must not pass for a model without findings."""
    try:
        yield
    except SystemExit as stop:
        raise InputError(
            expected="a file that can be imported and a factory that returns",
            got=f"{place!r} ended the program (SystemExit, code {stop.code!r})",
            fix='put what the script does behind `if __name__ == "__main__":`',
        ) from stop


def _private_name(path: Path) -> str:
    """A module name that depends on the full path, so that two `model.py` never meet."""
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
            raise  # the target is there; something that it imports is not, and that is the user's to see
        raise InputError(
            expected="a module that can be imported",
            got=f"{name!r}: {error}",
            fix=f"check the spelling, install it, or name its file: path/to/{name.rpartition('.')[2]}.py:factory",
        ) from None


def _find(module: ModuleType, attribute: str, place: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(
                expected=f"a factory in {place}",
                got=f"{attribute!r}, which it does not have",
                fix=_offer(found, part),
            )
        found = getattr(found, part)
    return found


def _offer(owner: Any, wanted: str) -> str:
    home = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", None)
    names = [
        name
        for name, item in vars(owner).items()
        if not name.startswith("_") and callable(item) and getattr(item, "__module__", home) == home
    ]
    close = get_close_matches(wanted, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of: {_listed(names)}" if names else "write a function there that returns a leadline.Case"


def _listed(names: list[str]) -> str:
    rest = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _make(found: Any, spec: str) -> Case:
    from torch import nn

    from leadline.case import as_case

    if not callable(found) or isinstance(found, nn.Module):
        return as_case(found)
    _check_needs_nothing(found, spec)
    return as_case(found())


def _takes_depth(found: Any, spec: str) -> bool:
    """Whether this is a function that can be called with one argument."""
    if not callable(found) or hasattr(found, "parameters"):  # a module is a model, not a factory
        return False
    needed = _needed(found)
    if len(needed) > 1:
        raise InputError(
            expected="a function of one argument, the depth, that returns a leadline.Case",
            got=f"{spec!r}, which needs {', '.join(needed)}",
            fix="write def build(depth): ... that calls it with the values you want",
        )
    return bool(needed) or _first_argument(found) == "depth"


def _first_argument(factory: Any) -> str:
    try:
        return next(iter(inspect.signature(factory).parameters), "")
    except (TypeError, ValueError):
        return ""


def _needed(factory: Any) -> list[str]:
    """Names of the arguments that have no default."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables written in C have none; calling will tell
        return []
    return [
        each.name
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _check_needs_nothing(factory: Any, spec: str) -> None:
    if needed := _needed(factory):
        raise InputError(
            expected="a factory that is called without arguments",
            got=f"{spec!r}, which needs {', '.join(needed)}",
            fix="give them defaults, or write a function that calls it with the values you want",
        )


def moved(case: Case, *, device: str | None, dtype: str | None) -> Case:
    """`case` with its model, batch and loss on `device` and in `dtype`; whole numbers keep their type.

    The model itself is moved, as `model.to` does, so that the optimiser goes on holding its parameters.
    """
    if device is None and dtype is None:
        return case
    import torch
    from torch.utils._pytree import tree_map_only

    where, kind = _device(device), _dtype(dtype)

    def place_one(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(where, kind if tensor.is_floating_point() else None)

    def place(batch: Any) -> Any:
        return tree_map_only(torch.Tensor, place_one, batch)

    return replace(
        case,
        model=case.model.to(where, kind),
        inputs=place(case.inputs),
        targets=place(case.targets),
        loss=case.loss.to(where, kind) if isinstance(case.loss, torch.nn.Module) else case.loss,
        batches=None if case.batches is None else _Placed(case.batches, place),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """Batches that are moved when they are asked for, as often as they are."""

    batches: Iterable[Any]
    place: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.place, self.batches)


def _device(name: str | None) -> torch.device | None:
    import torch

    if name is None:
        return None
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # an AssertionError if torch was built without CUDA
        raise InputError(
            expected="a device that this machine has, such as cpu, cuda or cuda:1",
            got=f"{name!r}: {str(error).splitlines()[0]}",
            fix="run `leadline doctor` to see the devices",
        ) from None


def _dtype(name: str | None) -> torch.dtype | None:
    import torch

    found = getattr(torch, name, None) if name else None
    if name is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    raise InputError(
        expected="a floating-point type of torch",
        got=repr(name),
        fix="use float32, float64, float16 or bfloat16",
    )
