"""State that belongs to the user's code rather than to an object: closures, classes, and variables of files.

Each function here reads one kind of it for a `Snapshot` (see `tracer.state`).
"""

from __future__ import annotations

import contextvars
import dis
import functools
import gc
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from leadline.tracer import write_back
from leadline.tracer.sources import OWN_PACKAGES, is_installed, top_package

if TYPE_CHECKING:
    from leadline.tracer.state import Path, Snapshot

# Derived: the opcode of `x = ...` after `global x`.
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]


def read_function(snapshot: Snapshot, item: types.FunctionType, path: Path) -> None:
    """What a function of the user can write to, and that of the functions it calls."""
    if top_package(item.__module__) in OWN_PACKAGES:
        return
    _read_cells(snapshot, item, path)
    snapshot.visit(enumerate(item.__defaults__ or ()), path)
    snapshot.visit((item.__kwdefaults__ or {}).items(), path)
    snapshot.read_attributes(item, path)
    if not is_installed(item.__module__):
        _read_globals(snapshot, item.__globals__, item.__code__)


def _read_cells(snapshot: Snapshot, item: types.FunctionType, path: Path) -> None:
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=False):
        if not snapshot.is_new(cell):
            continue
        try:
            content = cell.cell_contents
        except ValueError:  # it is empty
            continue
        snapshot.on_restore(partial(write_back.restore_cell, cell, content))
        snapshot.visit([(name, content)], path)


def _read_globals(snapshot: Snapshot, variables: dict[str, Any], code: types.CodeType) -> None:
    """The variables of the user's own file that the code uses, and those of other files of the user."""
    writes = _STORE_GLOBAL in code.co_code[::2]
    for name in code.co_names:
        value = variables.get(name, write_back.EMPTY)
        if isinstance(value, types.ModuleType):
            _read_used(snapshot, value, code)
            continue
        if writes:
            snapshot.on_restore(partial(write_back.restore_variable, variables, name, value))
        if value is not write_back.EMPTY:
            snapshot.visit([(name, value)], (None, "variables"))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read_globals(snapshot, variables, constant)


def _read_used(
    snapshot: Snapshot,
    module: types.ModuleType,
    code: types.CodeType,
    outer: tuple[types.ModuleType, ...] = (),
) -> None:
    """What the code uses of another file of the user (`helpers.generator`, `package.helpers.generator`)."""
    if is_installed(module.__name__) or module in outer:
        return
    variables = vars(module)
    for name in code.co_names:
        value = variables.get(name, write_back.EMPTY)
        if isinstance(value, types.ModuleType):
            _read_used(snapshot, value, code, (*outer, module))
        elif value is not write_back.EMPTY:
            snapshot.on_restore(partial(write_back.restore_variable, variables, name, value))
            snapshot.visit([(name, value)], (None, module.__name__))


def read_file(snapshot: Snapshot, item: types.ModuleType, path: Path) -> None:
    """All variables of a file of the user that an object holds, such as a file of settings."""
    if is_installed(item.__name__):
        return
    variables = vars(item)
    own = {name: value for name, value in variables.items() if not name.startswith("__")}
    for name, value in own.items():
        snapshot.on_restore(partial(write_back.restore_variable, variables, name, value))
    snapshot.visit(
        ((name, value) for name, value in own.items() if not isinstance(value, types.ModuleType)), path
    )


def read_method(snapshot: Snapshot, item: types.MethodType, path: Path) -> None:
    snapshot.visit([("__self__", item.__self__), ("__func__", item.__func__)], path)


def read_wrapper(snapshot: Snapshot, item: Any, path: Path) -> None:
    """A static method, class method or property: the functions in it."""
    functions = [getattr(item, name, None) for name in ("__func__", "fget", "fset", "func")]
    snapshot.visit(enumerate(each for each in functions if each is not None), path)


def read_partial(snapshot: Snapshot, item: functools.partial[Any], path: Path) -> None:
    snapshot.visit([("func", item.func), ("args", item.args), ("keywords", item.keywords)], path)
    snapshot.read_attributes(item, path)


def read_cache(snapshot: Snapshot, item: Any, path: Path) -> None:
    """A function with `functools.lru_cache`: itself, and the results that it keeps.

    Only the garbage collector says where they are: in a dict if there may be any number of them, else in a linked list,
    which can be emptied but not put back.
    """
    snapshot.visit([("__wrapped__", item.__wrapped__)], path)
    snapshot.read_attributes(item, path)
    if is_installed(item.__module__):
        return
    is_bounded = item.cache_parameters()["maxsize"] is not None
    if is_bounded and not item.cache_info().currsize:
        snapshot.on_restore(partial(write_back.restore_empty_cache, item))
        return
    held = [each for each in gc.get_referents(item) if not isinstance(each, type)]
    if is_bounded:  # the dict that finds the links of the list must not be written
        held = [each for each in held if type(each) is not dict or not _holds_links(each)]
    snapshot.visit((("results", each) for each in held), path)


def _holds_links(item: dict[Any, Any]) -> bool:
    return any(type(each).__name__ == "_lru_list_elem" for each in item.values())


def read_class(snapshot: Snapshot, item: type, path: Path) -> None:
    """The attributes of the user's own classes, also of one that has no instance, such as an autograd function."""
    for each in item.__mro__:
        if is_installed(each.__module__) or id(each) in snapshot.classes:
            continue
        snapshot.classes[id(each)] = each
        own = {name: value for name, value in vars(each).items() if not name.startswith("__")}
        own |= {name: value for name, value in vars(each).items() if name in ("__init__", "__call__")}
        snapshot.on_restore(partial(write_back.restore_class, each, own))
        snapshot.visit(own.items(), (path, each.__name__))


def read_context_variable(snapshot: Snapshot, item: contextvars.ContextVar[Any], path: Path) -> None:
    """The value in this thread; a variable that has none, not even a default, cannot be emptied again."""
    try:
        value = item.get()
    except LookupError:
        return
    snapshot.on_restore(partial(write_back.restore_context_variable, item, value))
    snapshot.visit([("value", value)], path)
