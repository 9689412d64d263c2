"""The tape of a training step: every torch call outside modules and every outermost module call, to repeat the step.

A call refers to its arguments by identity: a tensor that an earlier call made, or a tensor from outside (a parameter, a
part of the batch). From the tensors on which the program calls `backward`, the tape leads back to the calls that the
loss depends on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from leadline.tracer.inputs import unwrap
from leadline.tracer.restore import torch_random_state
from leadline.tracer.sources import is_user_file
from leadline.tracer.values import tensors_in

# Heuristic: calls on the tape of a program that goes on for long without a step (rollouts); beyond, none is noted.
MAX_TAPE_CALLS = 20_000
# Heuristic: calls of a module in evaluation mode without a backward pass, after which it is being evaluated.
MAX_EVALUATION_CALLS = 4
# Heuristic: frames between a call of a module and the code that names it in a variable.
MAX_SEARCHED_FRAMES = 12
# The devices whose autocast state is noted with each call.
AUTOCAST_DEVICES = ("cpu", "cuda")

TOO_LONG = f"more than {MAX_TAPE_CALLS:,} torch calls were made before the step"
CHANGED_VIEW = "a tensor is changed in place through a view"
UNKNOWN_CONTAINER = "a tensor is passed on inside an object that Leadline cannot look into"


@dataclass(frozen=True, slots=True)
class Made:
    """A reference to a tensor that a call on the tape made: output number `leaf` of call `call`."""

    call: int
    leaf: int


class Autocast(NamedTuple):
    """A type of device for which `torch.autocast` is enabled, and its dtype."""

    device: str
    dtype: torch.dtype


@dataclass(slots=True, kw_only=True)
class TapeCall:
    """One call, `function(*args, **kwargs)`; a `Made` in its arguments stands for the output of an earlier call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    """What the call returned; it also keeps the tensors alive, so that no other gets their id."""
    outputs: list[Tensor]
    """The tensors in `output`, then the arguments that the call changed in place."""
    written: tuple[int, ...] = ()
    """Positions among the tensors of the arguments of those that the call changed in place."""
    is_random: bool = False
    autocast: tuple[Autocast, ...] = ()
    has_grad: bool = True
    """Whether gradients were enabled."""
    name: str = ""
    """Of a module: the name of the variable or attribute through which the program called it."""
    called: nn.Module | None = None
    """Of a module: itself in the wrappers in which the program calls it."""
    owner: nn.Module | None = None
    """Of a module: the module whose method called it, if there is one."""
    references: tuple[Made, ...] = ()
    versions: tuple[tuple[Tensor, int], ...] = ()
    """The tensors from outside among the arguments, and how often each had been changed in place before the call."""

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None

    @property
    def is_trainable(self) -> bool:
        """Whether this is a call of a module with parameters that require a gradient."""
        return self.module is not None and any(each.requires_grad for each in self.module.parameters())

    @property
    def requires_grad(self) -> bool:
        return any(each.requires_grad for each in self.outputs)

    def has_seen(self, tensor: Tensor) -> bool:
        return any(each is tensor for each in self.outputs) or any(
            each is tensor for each, _ in self.versions
        )

    def replace_tensor(self, tensor: Tensor, copy: Tensor) -> None:
        """Refer to `copy` instead of `tensor`."""
        self.outputs = [copy if each is tensor else each for each in self.outputs]
        self.versions = tuple(
            (copy, _version(copy)) if each is tensor else (each, v) for each, v in self.versions
        )
        leaves, form = tree_flatten((self.args, self.kwargs))
        self.args, self.kwargs = tree_unflatten([copy if leaf is tensor else leaf for leaf in leaves], form)


FORGOTTEN = TapeCall(function=tuple, args=(), kwargs={}, output=None, outputs=[])
"""Stands for calls of earlier steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A tensor on which the program called `backward`, and the line that did so."""

    tensor: Tensor
    made: Made | None
    line: tuple[str, int] | None


@dataclass(slots=True)
class TapeState:
    """What a tape holds."""

    calls: list[TapeCall] = field(default_factory=list)
    made: dict[int, tuple[Tensor, Made]] = field(default_factory=dict)
    """By id of a tensor: the tensor and the call that made it."""
    roots: list[Root] = field(default_factory=list)
    problem: str = ""
    """Why the calls cannot be repeated faithfully; "" if they can."""


class Tape(TorchFunctionMode):
    """Notes torch calls while it is running. It changes no call; modules and backward passes run without it.

    The mode is put below all modes of the program, so that they can be entered and left in any order. Torch takes a
    mode from the stack while the mode handles a call, and puts it back afterwards. `backward` is such a call: a tape
    that is paused inside it returns to the stack, passes calls on unseen, and leaves at the next `pause` outside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = TapeState()
        self.is_running = False
        self._handled_calls = 0
        """Calls that this mode is handling now, one inside the other."""

    @property
    def is_handling(self) -> bool:
        """Whether a call of the program runs inside this mode, so that torch will put it back on the stack."""
        return self._handled_calls > 0

    def run(self) -> None:
        """Note calls from now on."""
        self.is_running = True
        if not self.is_handling and not _is_on_stack(self):
            _put_lowest(self)

    def pause(self) -> None:
        """Note no call until `run`. Outside of calls that the tape handles, it leaves the stack of modes too."""
        self.is_running = False
        if not self.is_handling and _is_on_stack(self):
            _take_out(self)

    def knows_any(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call on the tape made one of these tensors."""
        return any(self._find(each) is not None for each in tensors)

    def parameter_ids(self) -> set[int]:
        """Ids of the trained tensors that the calls on the tape use, in modules and outside of them."""
        ids: set[int] = set()
        modules = {id(call.module): call.module for call in self.state.calls if call.module is not None}
        for module in modules.values():
            ids.update(id(each) for each in module.parameters() if each.requires_grad)
        for call in self.state.calls:
            ids.update(id(each) for each, _ in call.versions if each.requires_grad and each.is_leaf)
        return ids

    def end_step(self, keep_from: int) -> None:
        """Begin the next step. Calls before number `keep_from` and the tensors that they made are forgotten.

        Those of the last step are kept, because a step may use what was computed for the one before (a GAN's images).
        """
        state = self.state
        state.roots = []
        for number in range(keep_from):
            state.calls[number] = FORGOTTEN
        state.made = {key: value for key, value in state.made.items() if value[1].call >= keep_from}

    def forget_evaluation(self, module: nn.Module) -> bool:
        """Forget all calls, and return True, if calls of this module are an evaluation.

        Otherwise an evaluation with gradients enabled would keep the graphs of all its passes in memory. A module in
        evaluation mode may also be trained, but then a backward pass comes after a few calls.
        """
        state = self.state
        if module.training or state.roots:
            return False
        if sum(call.called is module for call in state.calls) < MAX_EVALUATION_CALLS:
            return False
        state.calls.clear()
        state.made.clear()
        return True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        self._handled_calls += 1
        try:
            return self._note(func, args, kwargs) if self.is_running else func(*args, **kwargs)
        finally:
            self._handled_calls -= 1

    def _note(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make a call, and note it."""
        if len(self.state.calls) >= MAX_TAPE_CALLS:
            self.state.problem = self.state.problem or TOO_LONG
            return func(*args, **kwargs)
        start = CallStart.of(args, kwargs)
        if start is not None and _writes(func):
            start.copy_target()
        output = func(*args, **kwargs)
        if start is not None:
            try:
                self._keep_original(start)
                self._add(func, tuple(args), kwargs, output, start)
            except Exception as error:
                self.state.problem = self.state.problem or f"{type(error).__name__}: {error}"
        return output

    def _keep_original(self, start: CallStart) -> None:
        """Let earlier calls that read or made a tensor refer to its copy, because a call has changed it since."""
        for tensor, version in zip(start.tensors, start.versions, strict=True):
            original = start.originals.get(id(tensor))
            if original is None or version == _version(tensor):
                continue
            for call in self.state.calls:
                if call.has_seen(tensor):
                    call.replace_tensor(tensor, original)

    def add_module_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, start: CallStart
    ) -> None:
        """Note a call of a module that has returned; `start` was taken before it."""
        call = self._add(unwrap(module), args, kwargs, output, start)
        if call is not None:
            call.name, call.owner, call.called = start.name, start.owner, module

    def add_root(self, tensor: Tensor) -> None:
        """Note that `backward` is called on this tensor."""
        self.state.roots.append(Root(tensor=tensor, made=self._find(tensor), line=user_line()))

    def _find(self, tensor: Tensor) -> Made | None:
        known = self.state.made.get(id(tensor))
        return None if known is None else known[1]

    def _add(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        start: CallStart,
    ) -> TapeCall | None:
        outputs = tensors_in(output)
        written = tuple(
            position
            for position, (tensor, version) in enumerate(zip(start.tensors, start.versions, strict=True))
            if version != _version(tensor)
            or (position == 0 and getattr(function, "__name__", "") == "__set__")
        )
        changed = [start.tensors[position] for position in written]
        outputs += [each for each in changed if not any(each is other for other in outputs)]
        if not outputs:
            return None
        self._check_views(changed)
        references: list[Made] = []
        outside: list[tuple[Tensor, int]] = []
        versions = dict(zip(map(id, start.tensors), start.versions, strict=True))

        def refer(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                made = self._find(leaf)
                if made is not None:
                    references.append(made)
                    return made
                leaf = start.originals.get(id(leaf), leaf)
                if id(leaf) not in versions:
                    return leaf  # a copy that nothing else changes
                outside.append((leaf, versions[id(leaf)]))
            elif any(self._find(each) is not None for each in tensors_in(leaf)):
                self.state.problem = self.state.problem or UNKNOWN_CONTAINER
            return leaf

        args, kwargs = tree_map(refer, (args, kwargs))
        call = TapeCall(
            function=function,
            args=args,
            kwargs=kwargs,
            output=output,
            outputs=outputs,
            written=written,
            is_random=start.has_drawn(),
            autocast=start.autocast,
            has_grad=start.has_grad,
            references=tuple(references),
            versions=tuple(outside),
        )
        number = len(self.state.calls)
        self.state.calls.append(call)
        for leaf, tensor in enumerate(outputs):
            self.state.made[id(tensor)] = tensor, Made(number, leaf)
        return call

    def _check_views(self, changed: Sequence[Tensor]) -> None:
        for tensor in changed:
            if tensor._is_view() and self._find(tensor) is not None:
                self.state.problem = self.state.problem or CHANGED_VIEW


class CallStart:
    """What must be known before a call in order to note it afterwards."""

    __slots__ = ("_random", "autocast", "has_grad", "name", "originals", "owner", "tensors", "versions")

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.versions = [_version(each) for each in tensors]
        self.autocast = autocast_state()
        self.has_grad = torch.is_grad_enabled()
        self.name = ""
        self.owner: nn.Module | None = None
        self.originals: dict[int, Tensor] = {}
        """By id of a tensor from outside that the call changes: its content before."""
        self._random = _generator_state()

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> CallStart | None:
        """None if the arguments cannot be read."""
        try:
            return cls([each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)])
        except Exception:  # a container of the user may raise when it is opened, and the program must go on
            return None

    @classmethod
    def of_module(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallStart | None:
        start = cls.of(args, kwargs)
        if start is not None:
            start.name, start.owner = name_in_program(module)
        return start

    def copy_target(self) -> None:
        """Copy the first argument before a call that changes it, unless it is part of the graph."""
        for tensor in self.tensors[:1]:
            if not tensor.requires_grad:
                self.originals[id(tensor)] = tensor.clone()

    def has_drawn(self) -> bool:
        """Whether the call drew random numbers."""
        return not torch.equal(self._random, _generator_state())


def autocast_state() -> tuple[Autocast, ...]:
    """The devices for which autocast is enabled, with their dtype."""
    return tuple(
        Autocast(device, torch.get_autocast_dtype(device))
        for device in AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )


@contextmanager
def settings_of(autocast: Sequence[Autocast], *, has_grad: bool) -> Iterator[None]:
    """Autocast and gradient mode as they were at a call."""
    now = {each.device: each for each in autocast_state()}
    then = {each.device: each for each in autocast}
    with ExitStack() as stack:
        if now != then:
            for device in now.keys() | then.keys():
                dtype = (then if device in then else now)[device].dtype
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=device in then))
        if not has_grad and torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        yield


def _generator_state() -> Tensor:
    """The states of torch's random number generators, in one tensor."""
    state = torch_random_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # pragma: no cover  (the tests have no such device)
        return torch.cat([state, *torch.cuda.get_rng_state_all()])
    return state


def _writes(function: Callable[..., Any]) -> bool:
    """Whether a function changes its first argument, judged by its name: `add_`, `__iadd__`, `__setitem__`."""
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or (
            name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
        )
    return name.endswith("_") and not name.endswith("__")


def _version(tensor: Tensor) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # inference tensors have none
        return 0


# The names that the program gives to things.


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost user's code on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def name_in_program(module: nn.Module) -> tuple[str, nn.Module | None]:
    """The name of the variable or attribute that holds `module` in the calling code, and the module it belongs to."""
    frame: FrameType | None = sys._getframe(1)
    searched = 0
    while frame is not None and searched < MAX_SEARCHED_FRAMES:
        if not _is_plumbing(frame):
            searched += 1
            name, owner = _name_in_frame(frame, module)
            if name:
                return name, owner
        frame = frame.f_back
    return type(unwrap(module)).__name__.lower(), None


def _is_plumbing(frame: FrameType) -> bool:
    """Whether the frame belongs to Leadline or to torch, whose variables say nothing about the program."""
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in ("leadline", "torch")


def _name_in_frame(frame: FrameType, module: nn.Module) -> tuple[str, nn.Module | None]:
    for name, value in frame.f_locals.items():
        if value is module and name.isidentifier() and name != "self":
            return name, None
    holder = frame.f_locals.get("self")
    if holder is not None and holder is not module:
        own = holder._modules if isinstance(holder, nn.Module) else getattr(holder, "__dict__", {})
        for name, value in own.items():
            if value is module:
                return name, holder if isinstance(holder, nn.Module) else None
    for name, value in frame.f_globals.items():
        if value is module and name.isidentifier():
            return name, None
    return "", None


# The place of the mode among others.


def _is_on_stack(mode: TorchFunctionMode) -> bool:
    count = torch._C._len_torch_function_stack()
    return any(torch._C._get_function_stack_at(place) is mode for place in range(count))


def _put_lowest(mode: TorchFunctionMode) -> None:
    above = _take_all()
    torch._C._push_on_torch_function_stack(mode)
    for each in reversed(above):
        torch._C._push_on_torch_function_stack(each)


def _take_out(mode: TorchFunctionMode) -> None:
    for each in reversed(_take_all()):
        if each is not mode:
            torch._C._push_on_torch_function_stack(each)


def _take_all() -> list[Any]:
    """Remove all modes of this thread; the highest comes first."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
