"""The card of a trace: how much was recorded, the signal and its gradient op by op, and the first non-finite value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leadline.records import GradientStats, Op, Stats, Trace, Value
from leadline.report.page import (
    Chart,
    Charts,
    Element,
    Fact,
    Gaps,
    Page,
    Section,
    Series,
    Step,
    Steps,
    Title,
    facts,
)
from leadline.text import count, layer_label, number, plural


def trace_page(trace: Trace) -> Page:
    """What a trace holds, without its thousands of numbers."""
    measured = [each for each in trace.values if each.forward is not None]
    with_gradient = [each for each in trace.values if each.backward is not None]
    parameters = sum(each.count for each in trace.parameters)
    return Page(
        subject=trace.model,
        titles=(Title(words=f"Trace of {trace.model}", tone="info"),),
        sentence=_sentence(trace),
        facts=facts(
            Fact(
                label="Values",
                value=count(len(trace.values)),
                phrase=f"{plural(len(trace.values), 'value')}: {count(len(measured))} measured, "
                f"{count(len(with_gradient))} with a gradient",
            ),
            Fact(label="Parameters", value=count(parameters), phrase=f"{count(parameters)} parameters"),
            Fact(label="Modules", value=plural(len(trace.modules), "module")),
            Fact(label="Mode", value="training mode" if trace.training else "evaluation mode"),
            Fact(label="Device", value=trace.device, is_name=True),
        ),
        sections=(Section(key="ops", title="By op", body=_body(trace)),),
        record=trace,
    )


def _sentence(trace: Trace) -> str:
    loss = "no backward pass" if trace.loss is None else f"loss {number(trace.loss)}"
    return f"{plural(len(trace.ops), 'op')}, {loss}"


def _body(trace: Trace) -> tuple[Element, ...]:
    first_outputs = [trace.values[op.outputs[0]] for op in trace.ops if op.outputs]
    charts = (
        _chart("Forward signal", [each.forward for each in first_outputs]),
        _chart("Backward signal", [each.backward for each in first_outputs]),
    )
    broken = [
        each for each in (_first_non_finite(trace, "forward"), _first_non_finite(trace, "backward")) if each
    ]
    steps = tuple(Step(title=each) for each in broken)
    return (Charts(items=charts), Steps(items=steps), Gaps(items=trace.gaps))


def _chart(title: str, rows: Sequence[Stats | GradientStats | None]) -> Chart:
    values = [None if each is None else each.ms for each in rows]
    series = Series(values=values, label="mean square", sparse=True)
    return Chart(title=title, unit="mean square of each op's output", series=(series,), prominent=True)


def _first_non_finite(trace: Trace, direction: str) -> str:
    """Where the first non-finite element of the signal, or of its gradient, comes from; "" if all are finite."""
    ops: Iterable[Op] = trace.ops if direction == "forward" else reversed(trace.ops)
    for op in ops:
        for value in (trace.values[each] for each in op.outputs):
            stats: Stats | GradientStats | None = getattr(value, direction)
            if stats is not None and stats.non_finite:
                return _words(op, value, stats, direction)
    return ""


def _words(op: Op, value: Value, stats: Stats | GradientStats, direction: str) -> str:
    what = "value" if direction == "forward" else "gradient"
    where = layer_label(op.module) if op.module else "the model itself"
    line = f" ({op.source.file}:{op.source.line})" if op.source is not None else ""
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"first non-finite {what}: op {op.index}, {op.name} in {where}{line}, {count(stats.non_finite)} of {shape}"
