"""Disables the step hooks of an optimizer while Leadline makes trial steps with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from leadline.joint_optimizer import members_of
from leadline.tracer.shield import atomic_contextmanager

# Where torch keeps the step hooks of an optimizer and those of all optimizers.
MEMBER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


@atomic_contextmanager
def suspend_step_hooks(optimizer: Optimizer) -> Iterator[None]:
    """Disable step hooks (loggers, moving averages) during trial steps: they belong to real steps.

    Hooks with the attribute `part_of_step` (warm-up and clipping of `leadline.nn.schedules`) run, because they decide
    what a step is.
    """
    with ExitStack() as stack:
        for owner, name in _hook_tables(optimizer):
            hooks = getattr(owner, name)
            stack.callback(setattr, owner, name, hooks)
            # Another table, instead of an emptied one: a hook that is running may have called this.
            setattr(owner, name, OrderedDict(_parts_of_step(hooks)))
        yield


def has_parts_of_step(optimizer: Optimizer) -> bool:
    """Return whether a hook belongs to the step, so that it also runs in trial steps."""
    return any(_parts_of_step(getattr(owner, name)) for owner, name in _hook_tables(optimizer))


def _hook_tables(optimizer: Optimizer) -> list[tuple[Any, str]]:
    """Return each owner of a table of hooks with the name of the table."""
    return [
        (owner, name)
        for owner, names in (
            *((member, MEMBER_HOOKS) for member in members_of(optimizer)),
            (torch_optimizer, GLOBAL_HOOKS),
        )
        for name in names
        if hasattr(owner, name)
    ]


def _parts_of_step(hooks: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: hook for key, hook in hooks.items() if getattr(hook, "part_of_step", False)}
