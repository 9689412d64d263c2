"""Restore the model, its gradients, random number generators and torch settings after a pass."""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from leadline.case import Case
from leadline.joint_optimizer import members_of
from leadline.records import Gap
from leadline.tracer.names import ModelIndex, index_model
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.sources import OWN_FOLDER
from leadline.tracer.state import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGuard:
    """What `preserve_state` will restore, for those who repeat passes or steps inside it."""

    snapshot: Snapshot
    random: dict[str, Any]

    def rewind(self) -> None:
        """Restore everything except parameters, their gradients and the optimizer: the next pass starts as this did."""
        self.snapshot.rewind()
        restore_random(self.random)

    def rewind_step(self) -> None:
        """Restore parameters and optimizer."""
        self.snapshot.rewind_step()

    def preserve_optimizer(self, tensors: Sequence[Tensor] | None = None) -> AbstractContextManager[None]:
        """Restore the tensors of the optimizer's state on exit, or these of them; copies exist only meanwhile."""
        return self.snapshot.optimizer.preserve_tensors(tensors)

    def rewind_dicts(self, dicts: Sequence[dict[Any, Any]]) -> None:
        """Let these dicts of the optimizer hold what they held, such as no state before the first step."""
        self.snapshot.optimizer.restore_dicts(dicts)

    def values_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of parameters as they were."""
        return [self.snapshot.values_of(each) for each in tensors]

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What cannot be restored."""
        return self.snapshot.gaps


class _OpenSnapshots(threading.local):
    def __init__(self) -> None:
        self.innermost: Snapshot | None = None


_OPEN = _OpenSnapshots()


@atomic_contextmanager
def preserve_state(
    case: Case, model_index: ModelIndex | None = None, *, makes_steps: bool = False
) -> Iterator[StateGuard]:
    """Restore model, loss, batch and optimizer on exit, bit for bit, also after an error; see `tracer.state`.

    Gradients are hidden meanwhile. Tensors of the optimizer's state are copied only if the code inside `makes_steps`.
    `model_index` is that of the model, if there is one already.
    """
    outer = _OPEN.innermost
    with ExitStack() as stack:
        states = stack.enter_context(preserve_process_state())
        snapshot = take_snapshot(case, outer, model_index, makes_steps=makes_steps)
        stack.callback(setattr, _OPEN, "innermost", outer)
        _OPEN.innermost = snapshot
        stack.callback(snapshot.restore)
        stack.enter_context(hide_gradients(list(snapshot.parameters.values())))
        yield StateGuard(snapshot=snapshot, random=random_states() if _has_run(states["threads"]) else states)


def take_snapshot(
    case: Case,
    outer: Snapshot | None = None,
    model_index: ModelIndex | None = None,
    *,
    makes_steps: bool = False,
) -> Snapshot:
    """A snapshot of everything that a pass of the case, or a step, can change."""
    members = members_of(case.optimizer)
    groups = [group for member in members for group in member.param_groups]
    own = [
        *members,
        *(member.param_groups for member in members),
        *(member.state for member in members),
        *groups,
    ]
    snapshot = Snapshot(_parameters_of(case, model_index), outer)
    snapshot.skip(own)
    snapshot.add("model", case.model)
    snapshot.add("loss", case.loss)
    snapshot.add("inputs", case.inputs, is_large=True)
    snapshot.add("targets", case.targets, is_large=True)
    snapshot.add_moving("optimizer", own, has_values=makes_steps)
    return snapshot


def _parameters_of(case: Case, model_index: ModelIndex | None) -> list[Tensor]:
    """The parameters of the model and of a loss that is a module, each once."""
    indexes = [index_model(case.model) if model_index is None else model_index]
    if isinstance(case.loss, nn.Module):
        indexes.append(index_model(case.loss))
    return list({key: named.item for index in indexes for key, named in index.parameters.items()}.values())


class _PieceOfWork:
    """Lives as long as the frame in which the work is done."""

    __slots__ = ("__weakref__",)


class _OwnWork(threading.local):
    """The pieces of Leadline's own work that this thread is doing.

    They are held weakly: if an interrupt ends a piece before it can say so, it is gone with its frame.
    """

    def __init__(self) -> None:
        self.pieces: weakref.WeakSet[_PieceOfWork] = weakref.WeakSet()


_OWN_WORK = _OwnWork()


def is_own_work() -> bool:
    """True while this thread runs the user's model for Leadline and not for the user."""
    pieces: Any = _OWN_WORK.pieces
    return bool(pieces.data)  # `len` of a WeakSet takes longer, and this runs in every step


@atomic_contextmanager
def preserve_process_state() -> Iterator[dict[str, Any]]:
    """Restore random number generators, torch's settings and this thread's modes on exit.

    Yields the states of the random number generators, for those who repeat passes inside it.
    Everything inside is Leadline's own work, which a monitor of the user's loop does not count.
    """
    with ExitStack() as stack:
        piece = _PieceOfWork()
        stack.callback(_OWN_WORK.pieces.discard, piece)
        _OWN_WORK.pieces.add(piece)
        stack.callback(restore_settings, read_settings())
        states = random_states()
        stack.callback(restore_random, states)
        yield states


@atomic_contextmanager
def hide_gradients(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Remove each `.grad` and the hooks that run once it is there (such as an optimizer step); restore them on exit.

    Hooks that the pass itself registers on a tensor are removed on exit.
    """
    saved = [(tensor, tensor.grad, _hooks(tensor)) for tensor in tensors]
    try:
        for tensor, grad, (_, after_accumulation) in saved:
            if grad is not None:
                tensor.grad = None
            if after_accumulation:
                _set_hooks(tensor._post_accumulate_grad_hooks, {})
        yield
    finally:
        for tensor, grad, (backward, after_accumulation) in saved:
            if tensor.grad is not grad:
                tensor.grad = grad
            _set_hooks(tensor._backward_hooks, backward)
            _set_hooks(getattr(tensor, "_post_accumulate_grad_hooks", None), after_accumulation)


_Hooks = dict[int, Any]


def _hooks(tensor: Tensor) -> tuple[_Hooks, _Hooks]:
    """Copies of the hooks of the tensor's gradient, and of those that run once it is accumulated."""
    backward: _Hooks | None = tensor._backward_hooks
    after_accumulation: _Hooks | None = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return dict(backward) if backward else {}, dict(after_accumulation) if after_accumulation else {}


def _set_hooks(hooks: _Hooks | None, wanted: _Hooks) -> None:
    """Change the dictionary of a tensor in place, if it has one, because autograd reads that dictionary."""
    if hooks is not None and hooks != wanted:
        hooks.clear()
        hooks.update(wanted)


# Settings of the process and of this thread, by value: whoever changed them, they are what they were.


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that code can read and write."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _autocast(device: str) -> Setting:
    def write(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return Setting(lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write)


def _flag(owner: Any, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _function_modes() -> list[Any]:
    modes: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return modes


def _restore_function_modes(before: list[Any]) -> None:
    """Remove modes that were left on the stack of this thread, and push those that are missing."""
    now = _function_modes()
    kept = 0
    while kept < min(len(now), len(before)) and now[kept] is before[kept]:
        kept += 1
    for _ in now[kept:]:
        _pop_mode()  # type: ignore[no-untyped-call]
    for mode in before[kept:]:
        _push_mode(mode)  # type: ignore[no-untyped-call]


@atomic_contextmanager
def active_mode(mode: TorchFunctionMode) -> Iterator[None]:
    """Let `mode` see the torch calls of this thread.

    On exit the stack of modes is what it was; torch's own exit would fail after an interrupt that left it too short.
    """
    before = _function_modes()
    try:
        _push_mode(mode)  # type: ignore[no-untyped-call]
        yield
    finally:
        _restore_function_modes(before)


def _default_device() -> torch.device | None:
    """The default device if one was set, which is a mode; `torch.get_default_device` does not tell."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _numpy_error_modes() -> dict[str, Any]:
    return dict(sys.modules["numpy"].geterr()) if "numpy" in sys.modules else {}


def _set_numpy_error_modes(modes: dict[str, Any]) -> None:
    if modes:
        sys.modules["numpy"].seterr(**modes)


def _float32_precisions() -> list[Setting]:
    """The precision of products of each backend and op (`torch.backends.cuda.matmul.fp32_precision`), outermost first.

    An older torch has only one for all of them.
    """
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    write = getattr(torch._C, "_set_fp32_precision_setter", None)
    if read is None or write is None:  # pragma: no cover  (an older torch)
        return []
    places = [("generic", "all")]
    places += [(backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]
    return [Setting(partial(read, *place), partial(write, *place)) for place in places]


SETTINGS: tuple[Setting, ...] = (
    Setting(_default_device, torch.set_default_device),
    Setting(_function_modes, _restore_function_modes),
    Setting(torch.is_grad_enabled, torch._C._set_grad_enabled),
    Setting(torch.get_default_dtype, torch.set_default_dtype),
    Setting(torch.get_num_threads, torch.set_num_threads),
    Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
    ),
    Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _autocast("cpu"),
    _autocast("cuda"),
    Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    _flag(torch.backends.cudnn, "benchmark"),
    _flag(torch.backends.cudnn, "deterministic"),
    _flag(torch.backends.cudnn, "enabled"),
    _flag(torch.backends.cudnn, "allow_tf32"),
    Setting(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    Setting(torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    Setting(torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    Setting(torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    Setting(_numpy_error_modes, _set_numpy_error_modes),
    *_float32_precisions(),
)


def read_settings() -> list[Any]:
    """The values of all settings."""
    return [_value_of(setting) for setting in SETTINGS]


def restore_settings(before: Sequence[Any]) -> None:
    """Write the settings that differ."""
    for setting, value in zip(SETTINGS, before, strict=True):
        if value is not _UNREADABLE and _value_of(setting) != value:
            setting.write(value)


_UNREADABLE = object()


def _value_of(setting: Setting) -> Any:
    """The value of a setting; torch refuses to state the precision of all products if each backend has its own."""
    try:
        return setting.read()
    except RuntimeError:
        return _UNREADABLE


# Random number generators of the process. Another thread may draw from them too. To put them back under it would make
# it draw the same numbers again, so they are left as they stand if such a thread ran meanwhile.


def random_states() -> dict[str, Any]:
    """The states of the random number generators of torch, Python and NumPy (if it is imported)."""
    # Activity comes first: a thread that draws between the two has run since, and its numbers are not drawn again.
    states: dict[str, Any] = {"threads": activity_of_threads()}
    states |= {"torch": torch_random_state(), "python": random.getstate()}
    if torch.cuda.is_available():  # pragma: no cover  (the tests have no such device)
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():  # pragma: no cover  (the tests have no such device)
        states["mps"] = torch.mps.get_rng_state()
    if "numpy" in sys.modules:
        states["numpy"] = _numpy_random_state()
    return states


def _numpy_random_state() -> Any:
    """Return the state of NumPy's generator, with a list in place of its array.

    To set the state, NumPy reads 624 numbers one by one, and from a list it does so in a twentieth of the time. A
    generator of another kind, which the user may have chosen, has a dict as its state.
    """
    state = sys.modules["numpy"].random.get_state()
    if not isinstance(state, tuple):
        return state
    name, numbers, *others = state
    return (name, numbers.tolist(), *others)


def torch_random_state() -> Tensor:
    """Return `torch.get_rng_state()`, read from a copy of the generator.

    torch locks a generator while it makes a tensor of its state. The garbage collector may run meanwhile, and with it
    code that needs the same generator, in this thread or in another: that is a deadlock. Copying the generator does
    not run the collector, and no other code needs the lock of the copy.
    """
    return torch.default_generator.clone_state().get_state()


def restore_random(states: dict[str, Any]) -> None:
    """Restore the states that `random_states` returned, unless another thread may have drawn numbers since."""
    if _has_drawn(states["threads"]):
        return
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:  # pragma: no cover  (the tests have no such device)
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states:  # pragma: no cover  (the tests have no such device)
        torch.mps.set_rng_state(states["mps"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def activity_of_threads() -> dict[int, str]:
    """By id of each other thread that may draw random numbers: how long and how often it has run so far."""
    if threading.active_count() == 1:
        return {}
    frames = sys._current_frames()
    own = threading.get_ident()
    return {
        thread.native_id: _activity(thread.native_id)
        for thread in threading.enumerate()
        if thread.native_id is not None and thread.ident != own and _may_draw(frames.get(thread.ident or 0))
    }


def _has_drawn(before: dict[int, str]) -> bool:
    """Whether one of these threads may have drawn numbers, also while they are asked whether they have run."""
    if not before:
        return False
    torch_state, python_state = torch_random_state(), random.getstate()
    return (
        _has_run(before)
        or random.getstate() != python_state
        or not torch.equal(torch_random_state(), torch_state)
    )


def _has_run(before: dict[int, str]) -> bool:
    """Whether one of these threads has run since. One that has ended has; new ones count as part of the pass."""
    return any(_activity(thread) != activity or not activity for thread, activity in before.items())


def _activity(thread: int) -> str:
    """Nanoseconds on a processor and the number of time slices; "" where the system does not say."""
    try:
        return Path(f"/proc/self/task/{thread}/schedstat").read_text()
    except OSError:
        return ""


def _may_draw(frame: FrameType | None) -> bool:
    """Whether a thread may run the user's code: not if Leadline, or an installed package other than torch, started it.

    Those write run files, show progress bars, send logs or serve a notebook.
    """
    entry = ""
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            entry = frame.f_code.co_filename
        frame = frame.f_back
    is_installed = "site-packages" in entry or "dist-packages" in entry
    is_own = entry.startswith(str(OWN_FOLDER))
    return not (is_installed or is_own) or str(Path(torch.__file__).parent) in entry
