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
import ctypes
import dis
import enum
import functools
import io
import random
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from leadline.records import Gap
from leadline.tracer import stats

Restore = Callable[[], object]
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
    SHARED: "they hold a lock, so another thread may change them meanwhile",
    LARGE: f"more than {MAX_WALKED_ITEMS} elements or {MAX_COPIED_BYTES // 2**20} MB of plain state were not walked",
    OTHERS: "an error came up while they were read",
}
_ATOMS = frozenset(
    {
        bool, int, float, complex, str, bytes, type(None), type(...), range, slice, type, types.ModuleType,
        types.BuiltinFunctionType, types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType,
        types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType, torch.dtype, torch.device,
        torch.Size, torch.layout, torch.memory_format, weakref.ref,
    }
)  # fmt: skip
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_CONNECTIONS = (socket.socket, subprocess.Popen)
_OUTSIDE = frozenset({"multiprocessing", "sqlite3", "ssl", "asyncio", "concurrent", "threading", "logging"})
_KEPT_PACKAGES = frozenset({"torch", "numpy", "leadline"}) | sys.stdlib_module_names


@dataclass(slots=True, eq=False)
class TensorState:
    """A tensor as it was: its memory, its values, its place in autograd."""

    tensor: Tensor
    alias: Tensor
    """Shares memory, shape, strides and dtype with the tensor as they were."""
    values: Tensor | None
    """A copy of the values; None if they are not restored."""
    storage_bytes: int | None
    requires_grad: bool
    is_leaf: bool
    version: Any
    grad: Tensor | None = None
    grad_values: Tensor | None = None

    def restore(self) -> None:
        """Make the tensor what it was; what has not changed is not written."""
        tensor, alias = self.tensor, self.alias
        if self.is_leaf and tensor.grad_fn is not None:
            tensor.detach_()
        if self.storage_bytes is not None and alias.untyped_storage().nbytes() != self.storage_bytes:
            alias.untyped_storage().resize_(self.storage_bytes)
        if tensor.layout is not torch.strided or alias.layout is not torch.strided:
            if self.values is not None and not same_bits(tensor, self.values):
                tensor.data = self.values.clone()
        else:
            if not _has_same_memory(tensor, alias):
                tensor.data = alias
            if self.values is not None and not same_bits(alias, self.values):
                _write(alias, self.values)
        if self.is_leaf and tensor.requires_grad != self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if self.version is not None:
            self.version.__exit__()

    def restore_gradient(self) -> None:
        if self.tensor.grad is not self.grad:
            self.tensor.grad = self.grad
        if (
            self.grad is not None
            and self.grad_values is not None
            and not same_bits(self.grad, self.grad_values)
        ):
            _write(self.grad, self.grad_values)


def capture_tensor(
    tensor: Tensor, known: TensorState | None = None, *, with_values: bool = True
) -> TensorState:
    """The state of a tensor; the values of a `known` one are shared if they are still the same."""
    alias = tensor.detach()
    values = None
    if with_values and not stats.unobservable(tensor):
        if known is not None and known.values is not None and same_bits(alias, known.values):
            values = known.values
        else:
            values = alias.clone()
    is_plain = values is not None and tensor.layout is torch.strided and not tensor.is_nested
    return TensorState(
        tensor=tensor,
        alias=alias,
        values=values,
        storage_bytes=alias.untyped_storage().nbytes() if is_plain else None,
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        version=None if values is None or tensor.is_inference() else _unsafe_preserve_version_counter(tensor),
    )


def _has_same_memory(tensor: Tensor, alias: Tensor) -> bool:
    """Whether two strided tensors are the same place in memory, read in the same way."""
    return (
        tensor.dtype == alias.dtype
        and tensor.shape == alias.shape
        and tensor.stride() == alias.stride()
        and tensor.storage_offset() == alias.storage_offset()
        and storage_of(tensor) == storage_of(alias)
    )


def storage_of(tensor: Tensor) -> int:
    """Return the identity of a tensor's storage; of the tensor itself if it has no single storage (if it is sparse)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _write(tensor: Tensor, values: Tensor) -> None:
    """Write values without autograd noticing: the user may hold a graph that saved this tensor."""
    with torch.inference_mode(mode=tensor.is_inference()), torch.no_grad():
        if tensor.is_inference():
            tensor.copy_(values)
        else:
            with _unsafe_preserve_version_counter(tensor):
                tensor.copy_(values)


def _find_memcmp() -> Any:
    try:
        compare = ctypes.CDLL(None).memcmp
    except (TypeError, OSError, AttributeError):  # pragma: no cover  (Windows)
        return None
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


_MEMCMP = _find_memcmp()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits; NaN equals itself, and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout is not other.layout:
        return False
    if one.layout is torch.sparse_coo:
        return same_bits(one._indices(), other._indices()) and same_bits(one._values(), other._values())
    if one.layout is not torch.strided or one.is_nested or one.is_quantized:
        return False  # unknown: they are written back
    if _MEMCMP is not None and one.device.type == "cpu" and one.is_contiguous() and other.is_contiguous():
        return not one.numel() or not _MEMCMP(
            one.data_ptr(), other.data_ptr(), one.numel() * one.element_size()
        )
    return torch.equal(_as_integers(one), _as_integers(other))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_integers(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


class Snapshot:
    """The values of everything reachable from what was added, in two groups.

    `rewind` puts back what a pass must not change, `restore` also what a step may change: parameters and optimizer.
    """

    def __init__(self, parameters: Iterable[Tensor], outer: Snapshot | None = None) -> None:
        """`outer` is a snapshot that was taken before and is still to be restored; it shares its copies."""
        self.tensors: dict[int, TensorState] = {}
        """By the id of each tensor."""
        self._outer = outer
        self._kept: dict[int, Any] = {}
        """Objects that were walked, by id; they are kept, so that no other object gets their id."""
        self._fixed, self._moving = _Group(), _Group()
        self._group = self._fixed
        self._walked = self._copied = 0
        self._unrestored: defaultdict[str, list[str]] = defaultdict(list)
        self._todo: deque[tuple[Any, Path]] = deque()
        self._parameters = {id(each): each for each in parameters}
        self._storages = {storage_of(each) for each in self._parameters.values()}
        self._ranges = sorted(filter(None, map(_memory_range, self._parameters.values())))
        self._has_values = True
        self._counts_bytes = False
        for tensor in self._parameters.values():
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
        self._group, self._has_values, self._counts_bytes = self._moving, has_values, False
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

    def restore(self) -> None:
        """Put back everything."""
        self._moving.restore()
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
            if id(item) in self._kept:
                continue
            self._kept[id(item)] = item
            try:
                _reader_of(type(item))(self, item, path)
            except Exception:  # an object of the user may raise from anything
                self._give_up(OTHERS, path)

    def _give_up(self, kind: str, path: Path) -> None:
        self._unrestored[kind].append(_spell(path))

    def _visit(self, items: Iterable[tuple[Any, Any]], path: Path) -> None:
        self._todo.extend((item, (path, step)) for step, item in items if type(item) not in _ATOMS)

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
        self._read_class(type(module), path)

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
        known = None if self._outer is None else self._outer.tensors.get(id(tensor))
        state = capture_tensor(tensor, known, with_values=self._has_values)
        self.tensors[id(tensor)] = state
        self._kept[id(tensor)] = tensor
        is_parameter = id(tensor) in self._parameters
        group = self._moving if is_parameter or storage_of(tensor) in self._storages else self._group
        group.tensors.append(state)
        if not is_parameter and state.is_leaf and state.requires_grad:
            state.grad = tensor.grad
            state.grad_values = None if tensor.grad is None else tensor.grad.detach().clone()
            group.gradients.append(state)
        attributes = vars(tensor)
        if attributes:
            self._add_dict(attributes)
            self._visit(attributes.items(), (None, "a tensor"))
        else:
            group.empty.append(attributes)

    def _read_dict(self, item: dict[Any, Any], path: Path) -> None:
        if not item:
            self._group.empty.append(item)
        elif self._has_room(len(item), path):
            self._add_dict(item)
            methods = OrderedDict if isinstance(item, OrderedDict) else dict
            self._visit(methods.items(item), path)
        if type(item) not in (dict, OrderedDict, defaultdict):
            self._read_attributes(item, path)

    def _add_dict(self, item: dict[Any, Any]) -> None:
        methods = OrderedDict if isinstance(item, OrderedDict) else dict
        self._group.dicts.append((item, list(methods.keys(item)), list(methods.values(item))))

    def _read_list(self, item: list[Any], path: Path) -> None:
        if not self._has_room(len(item), path):
            return
        self._group.others.append(partial(_restore_list, item, list(item)))
        self._visit(enumerate(item), path)
        if type(item) is not list:
            self._read_attributes(item, path)

    def _read_deque(self, item: deque[Any], path: Path) -> None:
        if self._has_room(len(item), path):
            self._group.others.append(partial(_restore_deque, item, list(item)))
            self._visit(enumerate(item), path)

    def _read_set(self, item: set[Any], path: Path) -> None:
        if self._has_room(len(item), path):
            self._group.others.append(partial(_restore_set, item, list(item)))
            self._visit(enumerate(item), path)

    def _read_tuple(self, item: Iterable[Any], path: Path) -> None:
        self._visit(enumerate(item), path)

    def _read_buffer(self, item: bytearray | array.array[Any], path: Path) -> None:
        if self._has_memory(len(item), path):
            self._group.others.append(partial(_restore_buffer, item, item[:]))

    def _read_array(self, item: Any, path: Path) -> None:
        """A NumPy array."""
        if item.dtype == object:
            if self._has_room(item.size, path):
                self._group.others.append(partial(_restore_objects, item, list(item.flat)))
                self._visit(enumerate(item.flat), path)
            return
        if not item.flags.writeable or not self._has_memory(item.nbytes, path):
            return
        group = self._moving if self._is_in_a_parameter(item.__array_interface__["data"][0]) else self._group
        group.others.append(partial(_restore_array, item, item.copy()))

    def _is_in_a_parameter(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._ranges)

    def _read_generator(self, item: Any, path: Path) -> None:
        """A random number generator."""
        read, write = _generator_access(item)
        self._group.others.append(partial(_restore_generator, read, write, read()))

    def _read_memory_file(self, item: Any, path: Path) -> None:
        if not item.closed:
            self._group.others.append(partial(_restore_memory_file, item, item.getvalue(), item.tell()))

    def _read_function(self, item: types.FunctionType, path: Path) -> None:
        if _top_package(item.__module__) in _KEPT_PACKAGES:
            return
        self._read_cells(item, path)
        self._visit(((index, each) for index, each in enumerate(item.__defaults__ or ())), path)
        self._visit((item.__kwdefaults__ or {}).items(), path)
        self._read_attributes(item, path)
        self._read_globals(item, item.__code__, path)

    def _read_cells(self, item: types.FunctionType, path: Path) -> None:
        for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=False):
            if id(cell) in self._kept:
                continue
            self._kept[id(cell)] = cell
            try:
                content = cell.cell_contents
            except ValueError:  # it is empty
                continue
            self._group.others.append(partial(_restore_cell, cell, content))
            self._visit([(name, content)], path)

    def _read_globals(self, function: types.FunctionType, code: types.CodeType, path: Path) -> None:
        """The variables of the file that the function uses, and those of other files of the user."""
        variables = function.__globals__
        is_installed = _is_installed(variables)
        writes = _writes_globals(code)
        for name in code.co_names:
            value = variables.get(name)
            if type(value) in _ATOMS and not isinstance(value, types.ModuleType):
                if writes and name in variables:
                    self._group.others.append(partial(_restore_variable, variables, name, value))
            elif isinstance(value, types.ModuleType):
                self._read_used(vars(value), code, path)
            elif _is_followed(value, variables, is_installed=is_installed):
                if writes:
                    self._group.others.append(partial(_restore_variable, variables, name, value))
                self._todo.append((value, (None, name)))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read_globals(function, constant, path)

    def _read_used(self, variables: dict[str, Any], code: types.CodeType, path: Path) -> None:
        """What the code uses of another file of the user (`helpers.generator`)."""
        if _is_installed(variables):
            return
        for name in code.co_names:
            value = variables.get(name)
            if name in variables and not isinstance(value, types.ModuleType):
                self._group.others.append(partial(_restore_variable, variables, name, value))
                self._visit([(name, value)], (None, "a file"))

    def _read_method(self, item: types.MethodType, path: Path) -> None:
        self._visit([("__self__", item.__self__), ("__func__", item.__func__)], path)

    def _read_wrapper(self, item: Any, path: Path) -> None:
        """A static method, class method or property: the functions in it."""
        functions = [getattr(item, name, None) for name in ("__func__", "fget", "fset")]
        self._visit(enumerate(each for each in functions if each is not None), path)

    def _read_partial(self, item: functools.partial[Any], path: Path) -> None:
        self._visit([("func", item.func), ("args", item.args), ("keywords", item.keywords)], path)
        self._read_attributes(item, path)

    def _read_class(self, kind: type, path: Path) -> None:
        """The attributes of the user's own classes."""
        for each in kind.__mro__:
            if id(each) in self._kept or _top_package(each.__module__) in _KEPT_PACKAGES:
                continue
            self._kept[id(each)] = each
            own = {name: value for name, value in vars(each).items() if not name.startswith("__")}
            own |= {name: value for name, value in vars(each).items() if name in ("__init__", "__call__")}
            self._group.others.append(partial(_restore_class, each, own))
            self._visit(own.items(), (path, each.__name__))

    def _read_instance(self, item: Any, path: Path) -> None:
        kind = type(item)
        top = _top_package(kind.__module__)
        if top in _OUTSIDE or top == "leadline":
            if top not in ("leadline", "logging", "threading"):
                self._give_up(FILES, path)
            return
        attributes = getattr(item, "__dict__", None)
        if attributes and any(isinstance(each, _LOCKS) for each in attributes.values()):
            self._give_up(SHARED, path)
            return
        self._read_attributes(item, path)
        self._read_class(kind, path)

    def _read_attributes(self, item: Any, path: Path) -> None:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            if attributes:
                if self._has_room(len(attributes), path):
                    self._add_dict(attributes)
                    self._visit(attributes.items(), path)
            else:
                self._group.empty.append(attributes)
        slots = _slots_of(type(item))
        if slots:
            values = {name: _slot_value(member, item) for name, member in slots.items()}
            self._group.others.append(partial(_restore_slots, item, slots, values))
            self._visit(((name, value) for name, value in values.items() if value is not _EMPTY), path)

    def _read_file(self, item: Any, path: Path) -> None:
        self._give_up(FILES, path)

    def _read_iterator(self, item: Any, path: Path) -> None:
        self._give_up(ITERATORS, path)

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


@cache
def _reader_of(kind: Any) -> Reader:
    """How objects of this class are read."""
    if kind in _ATOMS or issubclass(kind, type | enum.Enum | types.ModuleType | weakref.ref):
        return Snapshot._read_nothing
    for base, reader in _READERS:
        if issubclass(kind, base):
            return reader
    if _is_numpy(kind, "ndarray"):
        return Snapshot._read_array
    if _is_numpy(kind, "random") or issubclass(kind, torch.Generator | random.Random):
        return Snapshot._read_generator
    if hasattr(kind, "__next__"):
        return Snapshot._read_iterator
    return Snapshot._read_instance


_READERS: tuple[tuple[type | tuple[type, ...], Reader], ...] = (
    (nn.Module, Snapshot._read_module),
    (Tensor, Snapshot._read_tensor),
    (dict, Snapshot._read_dict),
    (list, Snapshot._read_list),
    ((tuple, frozenset), Snapshot._read_tuple),
    (set, Snapshot._read_set),
    (deque, Snapshot._read_deque),
    (types.FunctionType, Snapshot._read_function),
    (types.MethodType, Snapshot._read_method),
    ((staticmethod, classmethod, property), Snapshot._read_wrapper),
    (functools.partial, Snapshot._read_partial),
    ((bytearray, array.array), Snapshot._read_buffer),
    ((io.StringIO, io.BytesIO), Snapshot._read_memory_file),
    ((io.IOBase, *_CONNECTIONS), Snapshot._read_file),
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


class _Group:
    """What is put back together."""

    def __init__(self) -> None:
        self.dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []
        self.empty: list[Any] = []
        self.tensors: list[TensorState] = []
        self.gradients: list[TensorState] = []
        self.others: list[Restore] = []

    def restore(self) -> None:
        for item, keys, values in self.dicts:
            if not _holds(item, keys, values):
                _refill(item, keys, values)
        for item in self.empty:
            if item:
                item.clear()
        for state in self.tensors:
            state.restore()
        for state in self.gradients:
            state.restore_gradient()
        for restore in self.others:
            restore()


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


def _restore_list(item: list[Any], before: list[Any]) -> None:
    if not _same_items(item, before, len(item)):
        list.__setitem__(item, slice(None), before)


def _restore_deque(item: deque[Any], before: list[Any]) -> None:
    if not _same_items(item, before, len(item)):
        item.clear()
        item.extend(before)


def _restore_set(item: set[Any], before: list[Any]) -> None:
    if {id(each) for each in item} != {id(each) for each in before}:
        set.clear(item)
        set.update(item, before)


def _restore_buffer(item: Any, before: Any) -> None:
    if item != before:
        item[:] = before


def _restore_objects(item: Any, before: list[Any]) -> None:
    if not _same_items(item.flat, before, item.size):
        for index, value in enumerate(before):
            item.flat[index] = value


def _restore_array(item: Any, before: Any) -> None:
    if item.dtype != before.dtype:
        item.dtype = before.dtype
    if item.shape != before.shape:
        item.resize(before.shape, refcheck=False)
    if item.tobytes() != before.tobytes():
        item.setflags(write=True)
        item[...] = before


def _generator_access(item: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """How the state of a random number generator is read and written."""
    if isinstance(item, torch.Generator):  # a copy is read: see `torch_random_state`
        return lambda: item.clone_state().get_state(), item.set_state
    if isinstance(item, random.Random):
        return item.getstate, item.setstate
    bits = getattr(item, "bit_generator", None) or getattr(item, "_bit_generator", item)
    return lambda: bits.state, partial(setattr, bits, "state")


def _restore_generator(read: Callable[[], Any], write: Callable[[Any], object], before: Any) -> None:
    if not _same_state(read(), before):
        write(before)


def _same_state(now: Any, before: Any) -> bool:
    if isinstance(now, Tensor):
        return torch.equal(now, before)
    if isinstance(now, Mapping):  # NumPy's holds an array
        return all(_same_state(now[key], before[key]) for key in before)
    return now.tobytes() == before.tobytes() if hasattr(now, "tobytes") else bool(now == before)


def _restore_memory_file(item: Any, content: Any, place: int) -> None:
    if not item.closed and (item.getvalue() != content or item.tell() != place):
        item.seek(0)
        item.truncate()
        item.write(content)
        item.seek(place)


def _restore_cell(cell: types.CellType, content: Any) -> None:
    try:
        is_same = cell.cell_contents is content
    except ValueError:
        is_same = False
    if not is_same:
        cell.cell_contents = content


def _restore_variable(variables: dict[str, Any], name: str, value: Any) -> None:
    if variables.get(name) is not value:
        variables[name] = value


def _restore_class(kind: type, before: dict[str, Any]) -> None:
    now = vars(kind)
    for name, value in before.items():
        if now.get(name, _EMPTY) is not value:
            setattr(kind, name, value)
    for name in [name for name in now if name not in before and not name.startswith("__")]:
        delattr(kind, name)


_EMPTY = object()


def _slot_value(member: Any, item: Any) -> Any:
    try:
        return member.__get__(item)
    except AttributeError:
        return _EMPTY


def _restore_slots(item: Any, slots: dict[str, Any], before: dict[str, Any]) -> None:
    for name, member in slots.items():
        now, value = _slot_value(member, item), before[name]
        if now is value:
            continue
        if value is _EMPTY:
            member.__delete__(item)
        else:
            member.__set__(item, value)


@cache
def _slots_of(kind: Any) -> dict[str, Any]:
    """The slots of a class and its bases, as the descriptors that read and write them."""
    return {
        name: member
        for each in kind.__mro__
        if "__slots__" in vars(each)
        for name, member in vars(each).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _top_package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_installed(variables: Mapping[str, Any]) -> bool:
    """Whether a module is the standard library's or an installed package, and not a file of the user."""
    top = _top_package(variables.get("__name__"))
    file = str(variables.get("__file__", ""))
    return top in _KEPT_PACKAGES or "site-packages" in file or "dist-packages" in file


def _is_followed(value: Any, variables: Mapping[str, Any], *, is_installed: bool) -> bool:
    """Whether what a function finds in its file can hold state: data, and functions of the same code."""
    if value is None or isinstance(value, type):
        return False
    if isinstance(value, types.FunctionType):
        return value.__globals__ is variables or not (is_installed or _is_installed(value.__globals__))
    return not is_installed or isinstance(value, Tensor | torch.Generator | random.Random | nn.Module)


# Derived: the opcode of `x = ...` after `global x`.
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]


def _writes_globals(code: types.CodeType) -> bool:
    return _STORE_GLOBAL in code.co_code[::2]


def _memory_range(tensor: Tensor) -> tuple[int, int] | None:
    """The addresses of a tensor's memory."""
    try:
        storage = tensor.untyped_storage()
        return (storage.data_ptr(), storage.data_ptr() + storage.nbytes()) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError, ValueError):
        return None


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
