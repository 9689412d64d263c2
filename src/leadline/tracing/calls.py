"""Where in the model the pass is: the path of the running module and which call of it this is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as global_hooks

from leadline.tracing.census import Census
from leadline.tracing.shield import undivided

Entered = Callable[[nn.Module, tuple[Any, ...]], None]
Returned = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class CallStack:
    """The modules that are running, innermost last, and how often each was called.

    Calls are seen by PyTorch's global module hooks, so nothing is installed on the user's modules. They are told of
    modules that raise, too; should one be missed, its entry is dropped when a module further out returns.
    """

    def __init__(self, census: Census) -> None:
        self.counts: Counter[int] = Counter()
        self._paths = {key: named.names[0] for key, named in census.modules.items()}
        self._running: list[tuple[int, str, int]] = []
        self._thread = threading.get_ident()

    @property
    def here(self) -> tuple[str, int]:
        """Path of the innermost running module of the model, and which call of it (0 is the first)."""
        return self._running[-1][1:] if self._running else ("", 0)

    @undivided
    def follow(self, entered: Entered, returned: Returned) -> Iterator[None]:
        """Watch calls made by this thread: `entered` is told what each module took, `returned` what it gave too."""

        def enter(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == self._thread and id(module) in self._paths:
                key = id(module)
                self._running.append((key, self._paths[key], self.counts[key]))
                self.counts[key] += 1
                entered(module, args)

        def leave(
            module: nn.Module, args: Any, *rest: Any
        ) -> None:  # (kwargs, output); after an error only (output)
            if threading.get_ident() == self._thread and id(module) in self._paths:
                if len(rest) == 2:
                    returned(module, args, *rest)
                while self._running and self._running.pop()[0] != id(module):
                    pass

        handles = (
            global_hooks.register_module_forward_pre_hook(enter),
            global_hooks.register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
                global_hooks._global_forward_hooks_with_kwargs.pop(
                    handle.id, None
                )  # torch leaves this one behind
