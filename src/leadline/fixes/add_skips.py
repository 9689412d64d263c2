"""The fix add-skips: a residual connection around every layer of a plain deep network."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import rounded
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import ModuleSpan, called_module, family, is_fresh, module_span, weights
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit


@fix(
    name="add-skips",
    answers=(
        "B201",
        "B202",
        "B205",
        "F101",
        "F102",
        "F103",
        "F104",
        "F106",
        "I301",
        "I302",
        "I304",
        "U50",
        "U52",
        "N70",
    ),
    reach="architecture",
    since="0.1.0",
)
def add_skips(context: FixContext) -> Iterator[Plan]:
    r"""Turns the layers of a plain stack into residual branches: $x + \epsilon f(x)$.

    ## What it does
    A forward hook on each layer whose output has the shape of its input adds that input, and multiplies the layer's
    own output by $\epsilon$: a learned scalar that starts at 0 (ReZero), or a fixed $1/N$ (Adam) or $1/\sqrt N$ (SGD).
    The weights are drawn anew. A layer is the largest module around one weight: `nn.Sequential(Linear, ReLU)` if there
    is one, else the `Linear`.

    ## Why it works
    The skip carries the signal and its gradient past every layer. With a small $\epsilon$ the stack starts as a shallow
    network and becomes deeper as it learns.

    ## What it costs
    One product and one sum per layer, and a different architecture: weights trained without skips are useless in it.

    ## When it does not help
    Where widths change from layer to layer, because only layers of equal width get a skip. It does not apply to
    recurrent layers.

    ## References
    He et al., arXiv 1512.03385; Bachlechner et al., arXiv 2003.04887 (ReZero); Zagoruyko and Komodakis, arXiv
    1706.00388 (adding skips to plain networks).
    """
    spans = plain_spans(context)
    if len(spans) < MIN_STACK_LAYERS or not is_fresh(context):
        return
    fresh, count = fresh_edits(context), len(spans)
    law = "1/N" if family(context) == "adam" else "1/sqrt(N)"
    factor = 1 / count if law == "1/N" else count**-0.5
    yield _plan(f"skips around {count} layers, each scaled by {law} = {factor:.2g}", spans, fresh, factor, 0)
    yield _plan(f"skips around {count} layers, each with a learned scale from 0", spans, fresh, 0.0, 1)


def plain_spans(context: FixContext) -> list[ModuleSpan]:
    """Modules around one weight that keep the shape of their input, in order, outside of residual blocks."""
    spans: dict[str, ModuleSpan] = {}
    for weight in weights(context):
        if weight.residual or not weight.trainable:
            continue
        path = called_module(context, weight.name)
        span = _widest_span(context, path) if path else None
        if span is not None:
            spans.setdefault(span.path, span)
    return list(spans.values())


def _widest_span(context: FixContext, path: str) -> ModuleSpan | None:
    """The outermost module around `path` that still holds one weight and keeps the shape of its input."""
    widest = None
    while path:
        span = module_span(context.trace, path)
        if span is None or span.weights != 1:
            break
        entry, exit_ = span.entry, span.exit
        if entry.shape == exit_.shape and entry.dtype == exit_.dtype and entry.source is None:
            widest = span
        path = path.rpartition(".")[0]
    return widest


def _plan(title: str, spans: list[ModuleSpan], fresh: tuple[Edit, ...], factor: float, learned: int) -> Plan:
    options = {"factor": rounded(factor), "learned": learned}
    skips = tuple(Edit(action="skip", where=span.path, options={**options}) for span in spans)
    return Plan(title=title, edits=(*fresh, *skips), promise=0.7 if learned else 0.6)
