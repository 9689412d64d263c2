"""The fix lower-dropout: fewer units are dropped."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit

# Heuristic: at most this rate is left alone; Srivastava et al. 2014 use it for hidden layers.
MAX_USUAL_DROPOUT = 0.5
# Cited: Vaswani et al. 2017, section 5.4.
TARGET_DROPOUT = 0.1


@fix(name="lower-dropout", answers=("F110", "U5"), reach="recipe", since="0.2.0")
def lower_dropout(context: FixContext) -> Iterator[Plan]:
    r"""Lowers dropout rates above 0.5 to 0.1.

    ## What it does
    Sets the rate of every dropout, attention or recurrent layer that drops more than half of its units.

    ## Why it works
    Dropout of rate $p$ adds noise of $p/(1-p)$ times the power of the signal, at every layer that has it. At $p = 0.9$
    that is nine times, and a few such layers leave nothing to learn from.

    ## What it costs
    Regularization, which only matters once the network fits its data.

    ## When it does not help
    If the rate is an argument of a function call in your code (`F.dropout`): change it there.

    ## References
    Srivastava et al., "Dropout", 2014, section 7.3 (the best rates lie between 0.2 and 0.6).
    """
    edits = tuple(
        Edit(action="dropout", where=path, options={"attribute": attribute, "rate": TARGET_DROPOUT})
        for path, module in context.model.named_modules()
        for attribute in ("p", "dropout")
        if _is_high(getattr(module, attribute, None)) and _drops(module)
    )
    if edits:
        places = f"{len(edits)} dropout layer" + ("s" if len(edits) > 1 else "")
        yield Plan(title=f"rate of {places} lowered to {TARGET_DROPOUT:g}", edits=edits, promise=0.9)


def _is_high(rate: object) -> bool:
    return isinstance(rate, float) and MAX_USUAL_DROPOUT < rate <= 1.0


def _drops(module: object) -> bool:
    """Whether it is a module of torch whose rate is read in each pass."""
    from torch import nn  # torch-free start: `leadline fixes` lists the fixes without it
    from torch.nn.modules.dropout import _DropoutNd

    return isinstance(module, _DropoutNd | nn.MultiheadAttention | nn.RNNBase)
