"""The mode that follows what initializers write into fake tensors, and the distributions of random ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from leadline.ops.table import UNINITIALIZED_OPS
from leadline.tracer.weightless import writes
from leadline.tracer.weightless.distribution import (
    UNWRITTEN,
    Distribution,
    MaybeDistribution,
    RandomDraw,
    Unknown,
    constant,
    moments,
    normal,
    of_nodes,
    of_values,
    real_tensors,
    uniform,
)
from leadline.tracer.weightless.kernels import CallCache, Kernels
from leadline.tracer.weightless.memory import MAX_KNOWN_ELEMENTS, Memory

Draw = Callable[[Sequence[Any], Mapping[str, Any]], MaybeDistribution]
"""From the arguments after the tensor to the distribution that fills it."""


def _normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    mean, std = _argument(args, kwargs, 0, "mean", 0.0), _argument(args, kwargs, 1, "std", 1.0)
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        return Unknown("drawn around tensors of means or deviations")
    return normal(mean, std)


def _uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    return uniform(_argument(args, kwargs, 0, "from", 0.0), _argument(args, kwargs, 1, "to", 1.0))


@real_tensors()
def _exponential(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    r"""The distribution of $-\ln(1 - u) / \lambda$ for a uniform $u$."""
    rate = _argument(args, kwargs, 0, "lambd", 1.0)
    drawn = uniform()
    return of_nodes(-(1 - drawn.nodes).log() / rate, drawn, f"exponential({rate:.4g})")


@real_tensors()
def _log_normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    mean, std = _argument(args, kwargs, 0, "mean", 1.0), _argument(args, kwargs, 1, "std", 2.0)
    drawn = normal(mean, std)
    return of_nodes(drawn.nodes.exp(), drawn, f"log-normal({mean:.4g}, {std:.4g})")


def _bernoulli(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    chance = _argument(args, kwargs, 0, "p", 0.5)
    if isinstance(chance, Tensor):
        return Unknown("drawn with a tensor of probabilities")
    return moments(chance, chance, f"bernoulli({chance:.4g})", RandomDraw())


def _cauchy(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    return Unknown("drawn from a Cauchy distribution, which has no moments")


def integers(low: int, high: int) -> Distribution:
    r"""Uniform integers in $[a, b)$: $E[x] = (a + b - 1) / 2$ and $\mathrm{Var}[x] = ((b - a)^2 - 1) / 12$."""
    mean = (low + high - 1) / 2
    return moments(
        mean, mean * mean + ((high - low) ** 2 - 1) / 12, f"integers in [{low}, {high})", RandomDraw()
    )


def _standard_normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    return normal()


def _standard_uniform(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    return uniform()


def _permutation(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    return replace(integers(0, int(args[0])), how=f"permutation of {args[0]}")


def _integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    ends = [each for each in args if isinstance(each, int)]
    return integers(*((0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])))


def _integers_below(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MaybeDistribution:
    ends = [each for each in args if isinstance(each, int)]
    if not ends:
        return Unknown("drawn over the whole range of its type")
    return integers(*((0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])))


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], at: int, name: str, default: float) -> Any:
    value = args[at] if at < len(args) else kwargs.get(name, default)
    return float(value) if isinstance(value, int | float) else value


IN_PLACE: dict[str, Draw] = {
    "normal_": _normal,
    "uniform_": _uniform,
    "exponential_": _exponential,
    "log_normal_": _log_normal,
    "bernoulli_": _bernoulli,
    "cauchy_": _cauchy,
    "random_": _integers_below,
}
"""Ops that fill a tensor: `tensor.normal_(...)`."""

FRESH: dict[str, Draw] = {
    "randn": _standard_normal,
    "randn_like": _standard_normal,
    "rand": _standard_uniform,
    "rand_like": _standard_uniform,
    "normal": _normal,
    "randperm": _permutation,
    "randint": _integers,
}
"""Ops that return a new tensor."""


# The mode itself. It sits on top of PyTorch's fake tensors and sees every ATen op: those of `nn.init`, of operators and
# slices, and factories. For each it notes the distribution of what was written. Small deterministic tensors (positions,
# masks, rotary frequencies) are computed for real, so that code can read them.

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

# Derived: the value that each function of torch fills its result with.
_FILLED = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
_FULL = {"full", "full_like", "new_full", "scalar_tensor"}
_COPIES = {"clone", "_to_copy", "lift_fresh", "lift_fresh_copy", "alias_copy", "detach_copy", "view_copy"}
_DEVICE = torch.ops.prim.device.default


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A fake-tensor mode whose tensors can be deep-copied: PyTorch's own mode would be copied with each tensor."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeMode:
        return self


class InitializerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows ops while it is active. Without `follow_distributions`, it only computes tensors with known values."""

    def __init__(self, fake: FakeMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = Memory()
        self.follow_distributions = True
        self._fake = fake
        self._kernels = Kernels(fake)
        self.calls = CallCache(self.memory, self._kernels)
        self._handlers: dict[Any, Handler] = {}
        self._traits: dict[Any, writes.OpTraits] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the check costs as much as an op

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE:
            return args[0].fake_device
        handler = self._handlers.get(func)
        if handler is None:
            handler = self._handlers[func] = self._find_handler(func)
        args, kwargs = self._adopt_all(args), kwargs or {}
        return handler(func, args, self._adopt_all(kwargs) if kwargs else kwargs)

    def _find_handler(self, func: Any) -> Handler:
        if not isinstance(func, torch._ops.OpOverload) or func.namespace not in ("aten", "prims"):
            return _call
        name = str(func._schema.name).rpartition("::")[2]
        by_name: dict[str, Handler] = {
            **dict.fromkeys(IN_PLACE, self._draw_in_place),
            **dict.fromkeys(FRESH, self._draw),
            **dict.fromkeys(UNINITIALIZED_OPS, self._make_empty),
            **dict.fromkeys(_FILLED, self._make_filled),
            **dict.fromkeys(_FULL, self._make_full),
            **dict.fromkeys(_COPIES, self._make_copy),
            "zero_": self._fill_in_place,
            "fill_": self._fill_in_place,
            "copy_": self._copy_in_place,
            "_local_scalar_dense": self._read_number,
        }
        if name in by_name and "out" not in func._overloadname:
            return by_name[name]
        if name == "resize_":
            return self._resize
        return self._run if _is_view(func) or torch.Tag.inplace_view in func.tags else self._compute

    def _adopt_all(self, tree: Any) -> Any:
        """Replace real tensors (made earlier, or by `torch.tensor`) by fake ones with the same known values."""
        flat = tree.values() if isinstance(tree, Mapping) else tree
        return tree_map_only(Tensor, self.adopt, tree) if _contain_real(flat) else tree

    def adopt(self, tensor: Tensor) -> Tensor:
        """Return the fake tensor that stands for a real one; always the same one."""
        if isinstance(tensor, FakeTensor):
            return tensor
        stand_in = self._fake.from_tensor(tensor)
        if self.memory.find(stand_in) is None:
            self._note_values(stand_in, tensor)
        return stand_in

    def _note_values(self, fake: Tensor, values: Tensor) -> None:
        with real_tensors():
            if values.layout is torch.strided and not self.memory.write_values(fake, values.detach()):
                self.memory.write(fake, of_values(values, "values"))

    def _draw_in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.memory.write(args[0], IN_PLACE[_name(func)](args[1:], kwargs))
        return args[0]

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        self.memory.write(result, FRESH[_name(func)](args, kwargs))
        return result

    def _make_empty(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        self.memory.write(result, UNWRITTEN)
        return result

    def _resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        self.memory.allocate(result)
        return result

    def _make_filled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        self.memory.write(result, constant(_FILLED[_name(func)]))
        return result

    def _make_full(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        value = (
            args[0] if _name(func) == "scalar_tensor" else args[2] if _name(func) == "new_full" else args[1]
        )
        self.memory.write(result, self._constant(value))
        return result

    def _fill_in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.memory.write(args[0], self._constant(args[1] if len(args) > 1 else 0.0))
        return args[0]

    def _constant(self, value: Any) -> Distribution | Unknown:
        if isinstance(value, Tensor):
            known = self.memory.values(value)
            if known is None:
                return Unknown("filled with an unknown number")
            with real_tensors():
                value = known.item()
        return (
            Unknown("filled with a complex number") if isinstance(value, complex) else constant(float(value))
        )

    def _copy_in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        writes.copy(self.memory, args[0], args[1])
        return args[0]

    def _make_copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._kernels.run(func, args, kwargs, _tensors(args, kwargs))
        origin = self.memory.find(args[0])
        if origin is not None and self.memory.find(result) is not origin:
            self.memory.allocate(result)
            writes.copy(self.memory, result, args[0])
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a view or the like; what is known belongs to the storage."""
        return self._kernels.run(func, args, kwargs, _tensors(args, kwargs))

    def _read_number(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer `.item()`, `if tensor:` and the like."""
        values = self.memory.values(args[0])
        if values is None:
            return func(*args, **kwargs)  # PyTorch raises: a fake tensor has no value
        with real_tensors():
            return values.item()

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = writes.op_traits(func)
        given = _tensors(args, kwargs)
        written = traits.written(args, kwargs) if traits.writes else []
        if self._has_known_inputs(traits, given):
            return self._compute_values(func, args, kwargs, written)
        in_place = traits.pointwise and len(written) == 1 and written[0] is args[0]
        result = args[0] if in_place else self._kernels.run(func, args, kwargs, given)
        if self.follow_distributions:
            writes.note(self.memory, func, (args, kwargs), written or _tensors((result,), {}))
        else:
            for tensor in written:
                self.memory.write(tensor, Unknown("changed during the pass"))
        return result

    def _has_known_inputs(self, traits: writes.OpTraits, given: Sequence[Tensor]) -> bool:
        """Whether all inputs have known numbers. If each is constant, its distribution is cheaper than the numbers."""
        if traits.drawn:
            return False
        single = traits.pointwise and bool(given)
        for tensor in given:
            contents = self.memory.find(tensor)
            if contents is None:
                return False
            single = single and contents.values is None
        return not single and all(self.memory.values(tensor) is not None for tensor in given)

    def _compute_values(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: Sequence[Tensor]
    ) -> Any:
        """Run the op on real tensors in addition to the fake ones."""
        fake_result = func(*args, **kwargs) if _returns_tensors(func) else None
        fakes = _tensors((fake_result,), {})
        if not written and any(fake.numel() > MAX_KNOWN_ELEMENTS for fake in fakes):
            return fake_result
        with real_tensors():
            where = {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
            values = [tree_map_only(Tensor, self.memory.values, each) for each in args]
            options = {key: tree_map_only(Tensor, self.memory.values, each) for key, each in kwargs.items()}
            result = func(*values, **{**options, **where})
        if fake_result is None:
            return result
        if not written:
            for fake, value in zip(fakes, _tensors((result,), {}), strict=True):
                self._note_values(fake, value)
        return fake_result


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _name(func: Any) -> str:
    return str(func._schema.name).rpartition("::")[2]


def _is_view(func: Any) -> bool:
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _returns_tensors(func: Any) -> bool:
    return all("Tensor" in str(each.type) for each in func._schema.returns)


def _tensors(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of an op, also in lists; a plain loop, because every op comes here."""
    found: list[Tensor] = []
    _gather(args, found)
    if kwargs:
        _gather(kwargs.values(), found)
    return found


def _gather(parts: Iterable[Any], found: list[Tensor]) -> None:
    for each in parts:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            _gather(each, found)


def _contain_real(parts: Iterable[Any]) -> bool:
    for each in parts:
        if type(each) is FakeTensor:
            continue
        if isinstance(each, Tensor):
            return True
        if isinstance(each, list | tuple) and _contain_real(each):
            return True
    return False
