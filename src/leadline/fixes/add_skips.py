"""add-skips: a way past every layer of a plain deep network."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import Span, called_module, family, is_fresh, span_of, weights
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
    since="0.2",
)
def add_skips(patient: Patient) -> Iterator[Plan]:
    r"""Turns the layers of a plain stack into residual branches: $x + \epsilon f(x)$.

    ## What it does
    A forward hook on each layer whose output has its input's shape adds that input, and multiplies the layer's own
    output by $\epsilon$: a learned scalar that starts at 0 (ReZero), or $1/N$ fixed, with weights drawn anew. A layer
    is the largest module around one weight: `nn.Sequential(Linear, ReLU)` if there is one, else the `Linear`.

    ## Why it works
    Whatever the layers do to the signal, the skip carries it and its gradient past them; with $\epsilon$ small the
    stack starts as a shallow network and deepens as it learns.

    ## What it costs
    One product and one sum a layer, and another architecture: trained weights of the old one mean nothing in it.

    ## When it does not help
    Where widths change from layer to layer; there only blocks of equal width are led past. Not for recurrent layers.

    ## References
    He et al., arXiv 1512.03385; Bachlechner et al., arXiv 2003.04887 (ReZero); Zagoruyko and Komodakis, arXiv
    1706.00388 (adding skips to plain networks).
    """
    spans = plain_spans(patient)
    if len(spans) < MIN_STACK_LAYERS or not is_fresh(patient):
        return
    fresh, count = fresh_edits(patient), len(spans)
    law = "1/N" if family(patient) == "adam" else "1/sqrt(N)"
    fixed = 1 / count if law == "1/N" else count**-0.5
    yield _plan(f"skips past {count} layers, each added {law} = {fixed:.2g}", spans, fresh, fixed, 0)
    yield _plan(f"skips past {count} layers, each added by a learned number from 0", spans, fresh, 0.0, 1)


def plain_spans(patient: Patient) -> list[Span]:
    """The layers of one weight that keep their input's shape, in order; none inside of residual blocks."""
    found: dict[str, Span] = {}
    for each in weights(patient):
        if each.residual or not each.trainable:
            continue
        path = called_module(patient, each.name)
        span = _widest(patient, path) if path else None
        if span is not None:
            found.setdefault(span.path, span)
    return list(found.values())


def _widest(patient: Patient, path: str) -> Span | None:
    """The outermost module around `path` that still holds one weight and keeps its input's shape."""
    found = None
    while path:
        span = span_of(patient.trace, path)
        if span is None or span.weights != 1:
            break
        if (
            span.entry.shape == span.exit.shape
            and span.entry.dtype == span.exit.dtype
            and span.entry.source is None
        ):
            found = span
        path = path.rpartition(".")[0]
    return found


def _plan(title: str, spans: list[Span], fresh: tuple[Edit, ...], factor: float, learned: int) -> Plan:
    options = {"factor": float(f"{factor:.4g}"), "learned": learned}
    skips = tuple(Edit(action="skip", where=span.path, options=dict(options)) for span in spans)
    return Plan(title=title, edits=(*fresh, *skips), promise=0.7 if learned else 0.6)
