"""How one object of each kind is put back: what it holds is compared with what it held, and written if it differs."""

from __future__ import annotations

import array
import contextvars
import ctypes
import random
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor

from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.tensor_state import TensorState

Restore = Callable[[], object]


class RestoreGroup:
    """What is put back together."""

    def __init__(self) -> None:
        self.dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []
        self.empty: list[Any] = []
        self.tensors: list[TensorState] = []
        self.gradients: list[TensorState] = []
        self.others: list[Restore] = []

    def restore(self) -> None:
        """Put back everything; one object that cannot be written does not keep the others from it."""
        _restore_dicts(self.dicts)
        for item in self.empty:
            if item:
                _try(item.clear)
        _restore_tensors(self.tensors)
        for state in self.gradients:
            _try(state.restore_gradient)
        for restore in self.others:
            _try(restore)

    @atomic_contextmanager
    def preserve_tensors(self, tensors: Iterable[Tensor] | None = None) -> Iterator[None]:
        """Put back the values of tensors that were not copied: of all, or of these if the code writes no others.

        Copies exist only meanwhile. They are freed when everything is as it was, so that `restore` can finish the work
        of an exit that is interrupted.
        """
        wanted = None if tensors is None else {id(each) for each in tensors}
        states = [each for each in self.tensors if each.values is None]
        if wanted is not None:
            states = [each for each in states if id(each.tensor) in wanted]
        try:
            for state in states:
                state.copy_values()
            yield
        finally:
            _restore_tensors(states)
            for state in states:
                state.drop_values()

    def restore_dicts(self, dicts: Iterable[dict[Any, Any]]) -> None:
        """Put back what these dicts held, as far as they are known."""
        wanted = {id(each): each for each in dicts}
        _restore_dicts(each for each in self.dicts if id(each[0]) in wanted)
        for item in self.empty:
            if id(item) in wanted and item:
                _try(item.clear)


def _restore_dicts(states: Iterable[tuple[dict[Any, Any], list[Any], list[Any]]]) -> None:
    for item, keys, values in states:
        if not _holds(item, keys, values):
            _try(_refill, item, keys, values)


def _restore_tensors(states: Iterable[TensorState]) -> None:
    for state in states:
        _try(state.restore)


def _try(restore: Callable[..., object], *args: Any) -> None:
    try:
        restore(*args)
    except Exception as error:  # an object of the user may refuse; a verb must not fail at its end
        text = f"something that the model holds could not be restored ({type(error).__name__}: {error})"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _holds(item: dict[Any, Any], keys: list[Any], values: list[Any]) -> bool:
    """Whether the dict holds these objects in this order, compared by `is`, because they may be tensors."""
    methods = OrderedDict if isinstance(item, OrderedDict) else dict
    if len(item) != len(keys):
        return False
    return all(map(is_, methods.values(item), values)) and all(map(is_, methods.keys(item), keys))


def _refill(item: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Restore a dict by the methods of the base class: those of a subclass may do more, or refuse."""
    methods = OrderedDict if isinstance(item, OrderedDict) else dict
    if len(item) == len(keys) and all(map(is_, methods.keys(item), keys)):
        for key, value in zip(keys, values, strict=True):
            if dict.__getitem__(item, key) is not value:
                methods.__setitem__(item, key, value)
        return
    methods.clear(item)
    for key, value in zip(keys, values, strict=True):
        methods.__setitem__(item, key, value)


def _same_items(now: Iterable[Any], before: list[Any], length: int) -> bool:
    return length == len(before) and all(map(is_, now, before))


def restore_items(item: list[Any] | deque[Any] | set[Any], before: list[Any]) -> None:
    """Restore a list, deque or set; a set is compared without regard to its order, which refilling could change."""
    if isinstance(item, set):
        if {id(each) for each in item} != {id(each) for each in before}:
            set.clear(item)
            set.update(item, before)
    elif not _same_items(item, before, len(item)):
        if isinstance(item, list):
            list.__setitem__(item, slice(None), before)
        else:
            item.clear()
            item.extend(before)


def is_writable(item: Any) -> bool:
    """Whether the memory of the object can be written."""
    view = memoryview(item)
    return view.c_contiguous and not view.readonly


def restore_buffer(item: Any, before: bytes) -> None:
    if memoryview(item).tobytes() == before:
        return
    if isinstance(item, bytearray):  # it may have another length
        item[:] = before
    elif isinstance(item, array.array):
        item[:] = array.array(item.typecode, before)
    else:
        ctypes.memmove((ctypes.c_char * len(before)).from_buffer(item), before, len(before))


def restore_objects(item: Any, before: list[Any]) -> None:
    if not _same_items(item.flat, before, item.size):
        for index, value in enumerate(before):
            item.flat[index] = value


def restore_array(item: Any, before: Any) -> None:
    if item.dtype != before.dtype:
        item.dtype = before.dtype
    if item.shape != before.shape:
        item.resize(before.shape, refcheck=False)
    if not item.flags.writeable:  # only arrays that can be written are copied
        item.setflags(write=True)
    if item.tobytes() != before.tobytes():
        item[...] = before


def generator_access(item: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """How the state of a random number generator is read and written."""
    if isinstance(item, torch.Generator):  # a copy is read: see `torch_random_state`
        return lambda: item.clone_state().get_state(), item.set_state
    if isinstance(item, random.Random):
        return item.getstate, item.setstate
    bits = getattr(item, "bit_generator", None) or getattr(item, "_bit_generator", item)
    return lambda: bits.state, partial(setattr, bits, "state")


def restore_generator(read: Callable[[], Any], write: Callable[[Any], object], before: Any) -> None:
    if not _same_state(read(), before):
        write(before)


def _same_state(now: Any, before: Any) -> bool:
    if isinstance(now, Tensor):
        return torch.equal(now, before)
    if isinstance(now, Mapping):  # NumPy's holds an array
        return all(_same_state(now[key], before[key]) for key in before)
    return now.tobytes() == before.tobytes() if hasattr(now, "tobytes") else bool(now == before)


def restore_memory_file(item: Any, content: Any, place: int) -> None:
    if not item.closed and (item.getvalue() != content or item.tell() != place):
        item.seek(0)
        item.truncate()
        item.write(content)
        item.seek(place)


def restore_cell(cell: types.CellType, content: Any) -> None:
    try:
        is_same = cell.cell_contents is content
    except ValueError:
        is_same = False
    if not is_same:
        cell.cell_contents = content


def restore_empty_cache(function: Any) -> None:
    """Forget the results that a function with `functools.lru_cache` has kept since it had none."""
    if function.cache_info().currsize:
        function.cache_clear()


def restore_variable(variables: dict[str, Any], name: str, value: Any) -> None:
    """Restore a variable of a file; EMPTY if there was none."""
    if variables.get(name, EMPTY) is value:
        return
    if value is EMPTY:
        del variables[name]
    else:
        variables[name] = value


def restore_context_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    if variable.get(EMPTY) is not value:
        variable.set(value)


def restore_class(kind: type, before: dict[str, Any]) -> None:
    now = vars(kind)
    for name, value in before.items():
        if now.get(name, EMPTY) is not value:
            setattr(kind, name, value)
    for name in [name for name in now if name not in before and not name.startswith("__")]:
        delattr(kind, name)


EMPTY = object()


def slot_value(member: Any, item: Any) -> Any:
    try:
        return member.__get__(item)
    except AttributeError:
        return EMPTY


def restore_slots(item: Any, slots: dict[str, Any], before: dict[str, Any]) -> None:
    for name, member in slots.items():
        now, value = slot_value(member, item), before[name]
        if now is value:
            continue
        if value is EMPTY:
            member.__delete__(item)
        else:
            member.__set__(item, value)


def attribute_values(item: Any) -> list[Any]:
    """The values of an object's attributes and slots."""
    attributes = getattr(item, "__dict__", None)
    named = list(attributes.values()) if isinstance(attributes, dict) else []
    return named + [slot_value(member, item) for member in slots_of(type(item)).values()]


def slots_of(kind: type) -> dict[str, Any]:
    """The slots of a class and its bases, as the descriptors that read and write them."""
    return {
        name: member
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, member in vars(each).items()
        if isinstance(member, types.MemberDescriptorType)
    }
