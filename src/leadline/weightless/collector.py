"""The garbage collector at rest while a prediction builds its records."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A deep model leaves hundreds of thousands of small objects, all of them still needed and none in a cycle.

    The collector would go through all of them again and again, for a fifth of the whole time at 1000 layers.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
