"""The garbage collector at rest while a prediction builds its records."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, cycles: bool = True) -> Iterator[None]:
    """A deep model leaves hundreds of thousands of small objects, nearly all of them needed to the end.

    The collector would go through all of them again and again, for a fifth of the whole time at 1000 layers. Here it
    does so once, at the end, if there are cycles to be expected: a model is full of them, records have none.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if cycles:
            gc.collect()
