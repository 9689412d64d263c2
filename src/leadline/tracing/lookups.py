"""Ids that an embedding has no row for: torch only says that an index is out of range; this says whose and which."""

from __future__ import annotations

from types import FrameType

from torch import Tensor, nn
from torch.nn import functional

from leadline.errors import InputError

LOOKUPS = (functional.embedding.__code__, functional.embedding_bag.__code__)


def beyond_its_table(error: IndexError, model: nn.Module) -> InputError | None:
    """What the error means, if it comes out of an embedding whose table is too small; else None."""
    frame = _lookup(error)
    if frame is None:
        return None
    ids, table = frame.f_locals.get("input"), frame.f_locals.get("weight")
    if not isinstance(ids, Tensor) or not isinstance(table, Tensor) or not ids.numel():
        return None
    least, most, rows = int(ids.min()), int(ids.max()), len(table)
    if least >= 0 and most < rows:
        return None
    name = next((name for name, each in model.named_parameters() if each is table), "an embedding")
    worst = f"the largest is {most}" if most >= rows else f"the smallest is {least}"
    return InputError(
        expected=f"ids from 0 to {rows - 1}: {name} has {rows} rows",
        got=f"ids of shape {tuple(ids.shape)}, of which {worst}",
        fix="check that the tokenizer (or the length, for positions) belongs to this model, or enlarge the embedding",
    )


def _lookup(error: IndexError) -> FrameType | None:
    """The call of torch's embedding that raised; with a tracer at work it calls itself, and the inner one counts."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in LOOKUPS:
            found = trace.tb_frame
        trace = trace.tb_next
    return found
