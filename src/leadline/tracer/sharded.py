"""Sharded models (FSDP2): hooks on the modules gather whole parameters for the pass, and let go of them again.

What these hooks do is none of the model's doing. The recorder looks away while they run; it is told which tensors they
handed on (as a view, or cast), and the names of the parameters that are whole now, of which a model only shows shards.
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
from leadline.tracer.restore import atomic_contextmanager
from leadline.tracer.values import tensors_in

FSDP = "torch.distributed.fsdp"


def is_fsdp_module(module: nn.Module) -> bool:
    """Its parameters are gathered for the pass. Where nobody loaded FSDP there is no such module."""
    kind = getattr(sys.modules.get(FSDP), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def original_class(module: nn.Module) -> type[nn.Module]:
    """As its author wrote it: sharding puts a class of its own between a module and its class."""
    kind = type(module)
    return kind.__mro__[2] if is_fsdp_module(module) else kind


def is_shard(tensor: Tensor) -> bool:
    return type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor"


def reshard_all(model: nn.Module) -> None:
    """Shards again, as between two passes: after a pass without gradients the outermost parameters stay whole."""
    for module in model.modules():
        if is_fsdp_module(module):
            module.reshard()  # type: ignore[operator]  # of FSDPModule, whose class is known at run time only


@atomic_contextmanager
def gathering(recorder: Recorder, model_index: ModelIndex) -> Iterator[None]:
    """Follow what is gathered, from inside the call of the outermost module, which has gathered its own already."""
    sharded = [named for named in model_index.modules.values() if is_fsdp_module(named.item)]
    parameters = model_index.parameters.values() if sharded else ()
    canonical = {name: named.names[0] for named in parameters for name in named.names}

    def learn(path: str, module: nn.Module) -> None:
        with torch._C.DisableTorchFunction():  # the recorder is at work again
            for name, parameter in module.named_parameters():
                known = canonical.get(join(path, name))
                if known is not None and not is_shard(parameter):
                    recorder.gathered[id(parameter)] = known

    with ExitStack() as undo:
        for named in sharded:
            if named.names[0] == "":
                learn("", named.item)
            else:
                _stand_around(recorder, named.item, partial(learn, named.names[0], named.item), undo)
        yield


def _stand_around(
    recorder: Recorder, module: nn.Module, gathered: Callable[[], None], undo: ExitStack
) -> None:
    """Each hook of FSDP, in its place among those of others, becomes one that looks away; `undo` puts it back."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    for hooks, done in ((before, gathered), (after, None)):
        for key, hook in list(hooks.items()):
            if _is_fsdp(hook):
                hooks[key] = _away(recorder, hook, done)
                undo.callback(hooks.__setitem__, key, hook)


def _away(
    recorder: Recorder, hook: Callable[..., Any], gathered: Callable[[], None] | None
) -> Callable[..., Any]:
    """The hook, and the recorder looks away meanwhile. It hands on arguments before the pass, an output after it."""

    def run(module: nn.Module, *call: Any) -> Any:
        recorder.aside = True
        try:
            found = hook(module, *call)
        finally:
            recorder.aside = False
        if found is not None:
            recorder.handed_on(tensors_in(call if gathered else call[-1]), tensors_in(found))
        if gathered:
            gathered()
        return found

    return run


def _is_fsdp(hook: Callable[..., Any]) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(FSDP)


def filled(
    parameters: Sequence[Parameter], wholes: Mapping[str, stats.RawStats], grad_norms: Mapping[str, float]
) -> tuple[Parameter, ...]:
    """Parameters of which only a shard is here, with what was seen of them while they were whole.

    `grad_norms` are those of whole gradients, which all processes must find together.
    """
    whole = dict(zip(wholes, stats.fetch_stats(list(wholes.values())), strict=True))
    return tuple(
        _filled(each, whole[each.name], grad_norms.get(each.name)) if each.name in whole else each
        for each in parameters
    )


def _filled(parameter: Parameter, weight: Stats, grad_norm: float | None) -> Parameter:
    if grad_norm is not None and grad_norm < 0:  # a mark for a gradient that is not there
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
