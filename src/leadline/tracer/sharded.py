"""Sharded models (FSDP2): hooks on the modules gather whole parameters for the pass and release them again.

These hooks are not part of the model, so the recorder is paused while they run. Afterwards it learns which tensors they
replaced (by a view or a cast) and the names of the parameters that are whole now; the model itself only shows shards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from leadline.records import Parameter, Stats
from leadline.tracer import stats
from leadline.tracer.names import ModelIndex, join
from leadline.tracer.recorder import Recorder
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.values import tensors_in

FSDP = "torch.distributed.fsdp"


def is_fsdp_module(module: nn.Module) -> bool:
    """Whether FSDP gathers the module's parameters for the pass; never true if FSDP was not imported."""
    kind = getattr(sys.modules.get(FSDP), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def original_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that the module's author wrote; FSDP makes a subclass of it."""
    kind = type(module)
    return kind.__mro__[2] if is_fsdp_module(module) else kind


def is_shard(tensor: Tensor) -> bool:
    """Whether this process holds only a shard of the tensor."""
    return type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor"


def reshard_all(model: nn.Module) -> None:
    """Shard all parameters again, as between two passes: after a pass without gradients the outermost stay whole."""
    for module in model.modules():
        if is_fsdp_module(module):
            module.reshard()  # type: ignore[operator]  # a method of FSDPModule, whose class is known at run time only


@atomic_contextmanager
def follow_gathered_parameters(recorder: Recorder, model_index: ModelIndex) -> Iterator[None]:
    """Tell the recorder which parameters are gathered, during a call of the outermost module.

    The outermost module has already gathered its own parameters when this starts.
    """
    sharded = [named for named in model_index.modules.values() if is_fsdp_module(named.item)]
    parameters = model_index.parameters.values() if sharded else ()
    canonical = {name: named.names[0] for named in parameters for name in named.names}

    def note_gathered(path: str, module: nn.Module) -> None:
        with torch._C.DisableTorchFunction():  # the recorder is active again
            for name, parameter in module.named_parameters():
                known = canonical.get(join(path, name))
                if known is not None and not is_shard(parameter):
                    recorder.gathered_names[id(parameter)] = known

    with ExitStack() as undo:
        for named in sharded:
            if named.names[0] == "":
                note_gathered("", named.item)
            else:
                _pause_in_hooks(
                    recorder, named.item, partial(note_gathered, named.names[0], named.item), undo
                )
        yield


def _pause_in_hooks(
    recorder: Recorder, module: nn.Module, on_gathered: Callable[[], None], undo: ExitStack
) -> None:
    """Replace each hook of FSDP, in its place among the others, by one that pauses the recorder; `undo` restores it."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    for hooks, callback in ((before, on_gathered), (after, None)):
        for key, hook in list(hooks.items()):
            if _is_fsdp_hook(hook):
                hooks[key] = _pausing_hook(recorder, hook, callback)
                undo.callback(hooks.__setitem__, key, hook)


def _pausing_hook(
    recorder: Recorder, hook: Callable[..., Any], on_gathered: Callable[[], None] | None
) -> Callable[..., Any]:
    """Return a hook that runs `hook` while the recorder is paused.

    A hook before the pass may replace the arguments; a hook after the pass may replace the output.
    """

    def run(module: nn.Module, *call: Any) -> Any:
        recorder.is_paused = True
        try:
            replacement = hook(module, *call)
        finally:
            recorder.is_paused = False
        if replacement is not None:
            original = call if on_gathered else call[-1]
            recorder.tensors_replaced(tensors_in(original), tensors_in(replacement))
        if on_gathered:
            on_gathered()
        return replacement

    return run


def _is_fsdp_hook(hook: Callable[..., Any]) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(FSDP)


def fill_gathered_parameters(
    parameters: Sequence[Parameter],
    gathered_stats: Mapping[str, stats.RawStats],
    grad_norms: Mapping[str, float],
) -> tuple[Parameter, ...]:
    """Return the parameters, with the statistics of sharded ones measured while they were whole.

    `grad_norms` are norms of whole gradients, which all processes compute together.
    """
    whole = dict(zip(gathered_stats, stats.fetch_stats(list(gathered_stats.values())), strict=True))
    return tuple(
        _fill_parameter(each, whole[each.name], grad_norms.get(each.name)) if each.name in whole else each
        for each in parameters
    )


def _fill_parameter(parameter: Parameter, weight: Stats, grad_norm: float | None) -> Parameter:
    if grad_norm is not None and grad_norm < 0:  # the mark for a missing gradient
        grad_norm = None
    return replace(
        parameter,
        mean=weight.mean,
        ms=weight.ms,
        norm=weight.rms * weight.count**0.5,
        grad_norm=grad_norm,
        grad_ms=None if grad_norm is None else grad_norm**2 / weight.count,
        unobserved="",
    )
