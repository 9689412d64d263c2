"""A snapshot of everything that can be reached from some objects, by value, and how to put it back.

What belongs to a model is what `copy.deepcopy` would copy, and what its code can write to besides: closures, attributes
of its classes, variables of the file it is written in. All of it is walked once. Afterwards every value is compared
with the snapshot, and only what differs is written, so it does not matter who wrote it or how: a torch op, NumPy,
DLPack, a storage, a compiled kernel, a backward function.

What cannot be put back is listed in `Snapshot.gaps`: files, sockets, processes, iterators, and what is shared with
other threads or too large.
"""

from __future__ import annotations

import array
import contextvars
import ctypes
import enum
import functools
import gc
import io
import mmap
import queue
import random
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leadline.records import Gap
from leadline.tracer import code_state, write_back
from leadline.tracer.sources import is_installed, top_package
from leadline.tracer.tensor_state import KnownCopies, TensorState, capture_tensor, memory_range, storage_of
from leadline.tracer.write_back import RestoreGroup

Path = tuple[Any, ...]
"""The way from a root to an object, as nested pairs of the way before and the last step."""

# Heuristic: elements of containers, beyond those of modules; walking as many takes about a tenth of a second.
MAX_WALKED_ITEMS = 100_000
# Heuristic: bytes of tensors and arrays that are neither parameters nor buffers nor in the batch, such as a data set
# that a model holds.
MAX_COPIED_BYTES = 2**30
# Heuristic: names that a gap lists; the rest are counted.
MAX_NAMED = 5

FILES = "files and connections"
ITERATORS = "iterators"
SHARED = "objects that several threads share"
LARGE = "large objects"
OTHERS = "objects that cannot be copied"
_REASONS = {
    FILES: "what a pass writes or sends cannot be undone",
    ITERATORS: "what a pass takes from them cannot be put back",
    SHARED: "another thread may change them meanwhile",
    LARGE: f"more than {MAX_WALKED_ITEMS} elements or {MAX_COPIED_BYTES // 2**20} MB of plain state were not walked",
    OTHERS: "an error came up while they were read",
}
_ATOMS = frozenset(
    {
        bool, int, float, complex, str, bytes, type(None), type(...), range, slice, types.BuiltinFunctionType,
        types.CodeType, types.FrameType, types.TracebackType, types.GetSetDescriptorType, types.MemberDescriptorType,
        types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType, torch.dtype, torch.device,
        torch.Size, torch.layout, torch.memory_format,
    }
)  # fmt: skip
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Derived: the base class of everything in ctypes that has memory, which has no public name.
_C_DATA: type = ctypes.Structure.__mro__[1]
_C_FUNCTION: type = ctypes.CFUNCTYPE(None).__mro__[1]
_DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType)
_CONNECTIONS = (socket.socket, subprocess.Popen)
_OUTSIDE = frozenset({"multiprocessing", "sqlite3", "ssl", "asyncio", "concurrent"})
_MACHINERY = ("leadline", "logging", "threading", "torch._", "torch.distributed", "torch.utils.hooks")


class Snapshot:
    """The values of everything reachable from what was added, in three groups.

    `rewind` puts back what a pass must not change, `restore` also what a step may change: parameters and optimizer.
    """

    def __init__(self, parameters: Iterable[Tensor], outer: Snapshot | None = None) -> None:
        """`outer` is a snapshot that was taken before and is still to be restored; it shares its copies."""
        self.tensors: dict[int, TensorState] = {}
        """By the id of each tensor."""
        self._outer_copies = KnownCopies({} if outer is None else outer.tensors)
        self._kept: dict[int, Any] = {}
        """Objects that were walked, by id; they are kept, so that no other object gets their id."""
        self.classes: dict[int, type] = {}
        """Classes whose attributes were read, by id."""
        self._fixed, self._moving, self.optimizer = RestoreGroup(), RestoreGroup(), RestoreGroup()
        self._group = self._fixed
        self._walked = self._copied = 0
        self._unrestored: defaultdict[str, list[str]] = defaultdict(list)
        self._todo: deque[tuple[Any, Path]] = deque()
        self.parameters = {id(each): each for each in parameters}
        self._storages = {storage_of(each) for each in self.parameters.values()}
        self._has_values = True
        self._counts_bytes = False
        for tensor in self.parameters.values():
            self._add_tensor(tensor)

    def add(self, name: str, root: Any, *, is_large: bool = False) -> None:
        """Walk everything that can be reached from `root`; what `is_large` is copied whatever its size."""
        self._counts_bytes = not is_large
        self._todo.append((root, (None, name)))
        self._walk()

    def skip(self, items: Iterable[Any]) -> None:
        """Leave these objects to a later `add_moving`."""
        for item in items:
            self._kept[id(item)] = item

    def add_moving(self, name: str, items: Sequence[Any], *, has_values: bool) -> None:
        """Walk what a step may change; without values, tensors in it are not copied."""
        for item in items:
            self._kept.pop(id(item), None)
        self._group, self._has_values, self._counts_bytes = self.optimizer, has_values, False
        self._todo.extend((item, (None, name)) for item in items)
        self._walk()
        self._group, self._has_values = self._fixed, True

    def values_of(self, tensor: Tensor) -> Tensor:
        """The copy of a tensor's values as they were."""
        values = self.tensors[id(tensor)].values
        assert values is not None  # it was captured with its values
        return values

    def rewind(self) -> None:
        """Put back everything but parameters and optimizer."""
        self._fixed.restore()

    def rewind_step(self) -> None:
        """Put back parameters and optimizer."""
        self._moving.restore()
        self.optimizer.restore()

    def restore(self) -> None:
        """Put back everything."""
        self.rewind_step()
        self._fixed.restore()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What cannot be put back."""
        what = "restoring {}"
        return tuple(
            Gap(what=what.format(kind), why=_REASONS[kind], where=_some(names))
            for kind, names in self._unrestored.items()
        )

    # The walk, breadth first: what is near a root matters more than what is far away.

    def _walk(self) -> None:
        while self._todo:
            item, path = self._todo.popleft()
            if not self.is_new(item):
                continue
            try:
                _reader_of(type(item))(self, item, path)
            except Exception:  # an object of the user may raise from anything
                self._give_up(OTHERS, path)

    def _give_up(self, kind: str, path: Path) -> None:
        self._unrestored[kind].append(_spell(path))

    def visit(self, items: Iterable[tuple[Any, Any]], path: Path) -> None:
        """Walk these objects later, each with the last step of the way to it."""
        self._todo.extend((item, (path, step)) for step, item in items if type(item) not in _ATOMS)

    def is_new(self, item: Any) -> bool:
        """Whether the object was not walked yet; from now on it was."""
        if id(item) in self._kept:
            return False
        self._kept[id(item)] = item
        return True

    def on_restore(self, restore: write_back.Restore) -> None:
        """Call `restore` when everything is put back."""
        self._group.others.append(restore)

    def _has_room(self, count: int, path: Path) -> bool:
        if self._walked + count > MAX_WALKED_ITEMS:
            self._give_up(LARGE, path)
            return False
        self._walked += count
        return True

    def _has_memory(self, count: int, path: Path) -> bool:
        if not self._counts_bytes:
            return True
        if self._copied + count > MAX_COPIED_BYTES:
            self._give_up(LARGE, path)
            return False
        self._copied += count
        return True

    # One reader per kind of object.

    def _read_module(self, module: nn.Module, path: Path) -> None:
        """Modules do not count as plain state, and there are thousands of them, with empty dictionaries."""
        attributes = vars(module)
        self._group.dicts.append((attributes, list(attributes), list(attributes.values())))
        for name, value in attributes.items():
            kind = type(value)
            if kind in _ATOMS:
                continue
            if kind is dict or kind is OrderedDict:
                if not value:
                    self._group.empty.append(value)
                    continue
                if name in _MEMBERS or name in _HOOKS:
                    self._add_dict(value)
                    self._kept[id(value)] = value
                    if name in _MEMBERS:
                        self._read_members(value, path)
                    continue
            self._todo.append((value, (path, name)))
        if isinstance(module, torch.jit.ScriptModule):
            tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            self._read_members({**dict(tensors), **dict(module.named_children())}, path)
        code_state.read_class(self, type(module), path)

    def _read_members(self, members: dict[str, Any], path: Path) -> None:
        """Parameters, buffers and submodules: all of them, however large they are."""
        for name, item in members.items():
            if isinstance(item, Tensor):
                if id(item) not in self.tensors:
                    self._add_tensor(item)
            elif item is not None:
                self._todo.append((item, (path, name)))

    def _read_tensor(self, tensor: Tensor, path: Path) -> None:
        if id(tensor) in self.tensors:
            return
        size = tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 0
        if self._has_memory(size, path):
            self._add_tensor(tensor)

    def _add_tensor(self, tensor: Tensor) -> None:
        if nn.parameter.is_lazy(tensor):
            return
        is_parameter = id(tensor) in self.parameters
        is_in_a_parameter = is_parameter or storage_of(tensor) in self._storages
        state = capture_tensor(tensor, self._outer_copies.find, self._has_values or is_in_a_parameter)
        self.tensors[id(tensor)] = state
        self._kept[id(tensor)] = tensor
        group = self._moving if is_in_a_parameter else self._group
        group.tensors.append(state)
        if not is_parameter and state.is_leaf and state.requires_grad:
            state.grad = tensor.grad
            state.grad_values = None if tensor.grad is None else tensor.grad.detach().clone()
            group.gradients.append(state)
        attributes = vars(tensor)
        if attributes:
            self._add_dict(attributes)
            self.visit(attributes.items(), (None, "a tensor"))
        else:
            group.empty.append(attributes)

    def _read_dict(self, item: dict[Any, Any], path: Path) -> None:
        if not item:
            self._group.empty.append(item)
        elif self._has_room(len(item), path):
            self._add_dict(item)
            methods = OrderedDict if isinstance(item, OrderedDict) else dict
            self.visit(methods.items(item), path)
        if type(item) not in (dict, OrderedDict, defaultdict):
            self.read_attributes(item, path)

    def _add_dict(self, item: dict[Any, Any]) -> None:
        methods = OrderedDict if isinstance(item, OrderedDict) else dict
        self._group.dicts.append((item, list(methods.keys(item)), list(methods.values(item))))

    def _read_items(self, item: list[Any] | deque[Any] | set[Any], path: Path) -> None:
        if self._has_room(len(item), path):
            self.on_restore(partial(write_back.restore_items, item, list(item)))
            self.visit(enumerate(item), path)
            if type(item) not in (list, deque, set):
                self.read_attributes(item, path)

    def _read_tuple(self, item: Iterable[Any], path: Path) -> None:
        self.visit(enumerate(item), path)

    def _read_buffer(self, item: Any, path: Path) -> None:
        """Something whose memory can be written as bytes, such as a bytearray, an array or a memory map."""
        if write_back.is_writable(item) and self._has_memory(memoryview(item).nbytes, path):
            self.on_restore(partial(write_back.restore_buffer, item, memoryview(item).tobytes()))

    def _read_c_data(self, item: Any, path: Path) -> None:
        """A number, array or structure of ctypes; one that holds pointers to Python's objects cannot be copied."""
        if item._objects is None:
            self._read_buffer(item, path)
        else:
            self._give_up(OTHERS, path)

    def _read_storage(self, item: torch.UntypedStorage | torch.TypedStorage, path: Path) -> None:
        untyped = item if isinstance(item, torch.UntypedStorage) else item._untyped_storage
        self._read_tensor(torch.empty(0, dtype=torch.uint8, device=untyped.device).set_(untyped), path)

    def _read_array(self, item: Any, path: Path) -> None:
        """A NumPy array."""
        if item.dtype == object:
            if self._has_room(item.size, path):
                self.on_restore(partial(write_back.restore_objects, item, list(item.flat)))
                self.visit(enumerate(item.flat), path)
            return
        if not item.flags.writeable or not self._has_memory(item.nbytes, path):
            return
        address = item.__array_interface__["data"][0]
        ranges = filter(None, map(memory_range, self.parameters.values()))
        is_in_a_parameter = any(start <= address < end for start, end in ranges)
        group = self._moving if is_in_a_parameter else self._group
        group.others.append(partial(write_back.restore_array, item, item.copy()))

    def _read_generator(self, item: Any, path: Path) -> None:
        """A random number generator."""
        read, write = write_back.generator_access(item)
        self.on_restore(partial(write_back.restore_generator, read, write, read()))

    def _read_memory_file(self, item: Any, path: Path) -> None:
        if not item.closed:
            self.on_restore(partial(write_back.restore_memory_file, item, item.getvalue(), item.tell()))

    def _read_instance(self, item: Any, path: Path) -> None:
        kind = type(item)
        top = top_package(kind.__module__)
        if kind.__module__.startswith(_MACHINERY):
            return
        if top in _OUTSIDE:
            self._give_up(FILES, path)
            return
        attributes = getattr(item, "__dict__", None)
        if attributes and any(isinstance(each, _LOCKS) for each in attributes.values()):
            self._give_up(SHARED, path)
            return
        self.read_attributes(item, path)
        code_state.read_class(self, kind, path)
        self._read_unnamed(item, path)

    def _read_unnamed(self, item: Any, path: Path) -> None:
        """What an object of compiled code holds without an attribute that leads to it.

        A list or dict may be its own bookkeeping, which must agree with numbers that nobody else can read or write: its
        elements are walked, and it is not written itself. Behind a view is a dict of the user.
        """
        named = set(map(id, write_back.attribute_values(item)))
        for index, each in enumerate(gc.get_referents(item)):
            if isinstance(each, type) or id(each) in named:
                continue
            if isinstance(each, dict) and type(item) not in _DICT_VIEWS:
                self.visit(dict.items(each), path)
            elif isinstance(each, list | deque | set):
                self.visit(enumerate(each), path)
            else:
                self.visit([(index, each)], path)

    def read_attributes(self, item: Any, path: Path) -> None:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            if attributes:
                if self._has_room(len(attributes), path):
                    self._add_dict(attributes)
                    self.visit(attributes.items(), path)
            else:
                self._group.empty.append(attributes)
        slots = write_back.slots_of(type(item))
        if slots:
            values = {name: write_back.slot_value(member, item) for name, member in slots.items()}
            self.on_restore(partial(write_back.restore_slots, item, slots, values))
            self.visit(
                ((name, value) for name, value in values.items() if value is not write_back.EMPTY), path
            )

    def _read_nothing(self, item: Any, path: Path) -> None:
        """Something without state of its own."""


_MEMBERS = frozenset({"_parameters", "_buffers", "_modules"})
# Hooks are observers: they stay registered as they were, but what they collect is not the state of the model.
_HOOKS = frozenset(
    {
        "_backward_hooks", "_backward_pre_hooks", "_forward_hooks",
        "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
        "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)  # fmt: skip
Reader = Callable[[Snapshot, Any, Path], None]


def _reader_of(kind: type) -> Reader:
    """How objects of this class are read."""
    reader = _KNOWN_READERS.get(kind)
    if reader is None:
        reader = _KNOWN_READERS[kind] = _find_reader(kind)
    return reader


# Weak keys: a class that the user makes anew each time is not kept.
_KNOWN_READERS: weakref.WeakKeyDictionary[type, Reader] = weakref.WeakKeyDictionary()


def _find_reader(kind: type) -> Reader:
    if kind in _ATOMS or issubclass(kind, _C_FUNCTION):
        return Snapshot._read_nothing
    if issubclass(kind, enum.Enum) and is_installed(kind.__module__):
        return Snapshot._read_nothing
    for base, reader in _READERS:
        if issubclass(kind, base):
            return reader
    if _is_numpy(kind, "ndarray"):
        return Snapshot._read_array
    if _is_numpy(kind, "random") or issubclass(kind, torch.Generator | random.Random):
        return Snapshot._read_generator
    if hasattr(kind, "__next__"):
        return lambda snapshot, _, path: snapshot._give_up(ITERATORS, path)
    return Snapshot._read_instance


_READERS: tuple[tuple[type | tuple[type, ...], Reader], ...] = (
    (nn.Module, Snapshot._read_module),
    (Tensor, Snapshot._read_tensor),
    (dict, Snapshot._read_dict),
    ((list, deque, set), Snapshot._read_items),
    ((tuple, frozenset), Snapshot._read_tuple),
    (type, code_state.read_class),
    (types.ModuleType, code_state.read_file),
    (types.FunctionType, code_state.read_function),
    (types.MethodType, code_state.read_method),
    ((staticmethod, classmethod, property, functools.cached_property), code_state.read_wrapper),
    (type(functools.lru_cache(print)), code_state.read_cache),
    (functools.partial, code_state.read_partial),
    (contextvars.ContextVar, code_state.read_context_variable),
    ((torch.UntypedStorage, torch.TypedStorage), Snapshot._read_storage),
    ((bytearray, array.array, mmap.mmap), Snapshot._read_buffer),
    (weakref.ref, lambda snapshot, item, path: snapshot.visit([("()", item())], path)),
    (weakref.ProxyTypes, lambda snapshot, item, path: snapshot.visit([("()", item.__init__.__self__)], path)),
    (memoryview, lambda snapshot, item, path: snapshot.visit([("obj", item.obj)], path)),
    (_C_DATA, Snapshot._read_c_data),
    ((io.StringIO, io.BytesIO), Snapshot._read_memory_file),
    (queue.SimpleQueue, lambda snapshot, _, path: snapshot._give_up(SHARED, path)),
    ((io.IOBase, *_CONNECTIONS), lambda snapshot, _, path: snapshot._give_up(FILES, path)),
)


def _is_numpy(kind: type, what: str) -> bool:
    """Whether the class is NumPy's array, or one of its generators; NumPy is imported only by those who use it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if what == "ndarray":
        return issubclass(kind, numpy.ndarray)
    generators = (numpy.random.RandomState, numpy.random.Generator, numpy.random.BitGenerator)
    return issubclass(kind, generators)


def _spell(path: Path) -> str:
    steps: list[str] = []
    while path:
        before, step = path
        steps.append(str(step))
        path = before or ()
    return ".".join(reversed(steps))


def _some(names: Sequence[str]) -> tuple[str, ...]:
    known = list(dict.fromkeys(names))
    more = (f"and {len(known) - MAX_NAMED} more",) if len(known) > MAX_NAMED else ()
    return (*known[:MAX_NAMED], *more)
