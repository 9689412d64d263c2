"""Readings: what can be read off a finished trace, without torch and without the model."""

from __future__ import annotations

from leadline.readings.signal import find_anomalies, find_jumps
from leadline.readings.structure import read_structure
from leadline.records import Coverage, Profile, Trace

__all__ = ["read", "read_coverage"]


def read(trace: Trace) -> Profile:
    """All readings of a trace."""
    structure = read_structure(trace)
    return Profile(
        model=trace.model,
        loss=trace.loss,
        training=trace.training,
        optimizer=trace.optimizer,
        parameters=sum(parameter.count for parameter in trace.parameters),
        trainable=sum(parameter.count for parameter in trace.parameters if parameter.trainable),
        streams=structure.streams,
        blocks=structure.blocks,
        jumps=find_jumps(structure.blocks),
        anomalies=find_anomalies(trace),
        backward_ran=trace.loss is not None,
    )


def read_coverage(trace: Trace) -> Coverage:
    """How much of the pass the trace saw, and what it did not."""
    written = [value for value in trace.values if value.op is not None and value.floating]
    return Coverage(
        ops=len(trace.ops),
        ops_known=sum(op.kind is not None for op in trace.ops),
        values=len(written),
        forward=sum(value.forward is not None for value in written),
        backward=sum(value.backward is not None for value in written),
        gaps=(*trace.gaps, *read_structure(trace).gaps),
    )
