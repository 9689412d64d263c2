"""All readings of a finished trace as one Profile, without torch and without the model."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.readings.anomalies import find_anomalies
from leadline.readings.attribution import attribute
from leadline.readings.facts import read_facts, with_unit_statistics
from leadline.readings.signal import find_jumps, read_depth_scale
from leadline.readings.structure import Structure, read_structure
from leadline.records import Coverage, Profile, Trace
from leadline.tracer.cuts import find_cuts


def read_profile(trace: Trace) -> tuple[Profile, Coverage]:
    """All readings of a trace, and how much of the pass was measured."""
    structure = read_structure(trace)
    return _profile(trace, structure), _coverage(trace, structure)


def _profile(trace: Trace, structure: Structure) -> Profile:
    blocks = with_unit_statistics(trace, structure)
    profile = Profile(
        model=trace.model,
        loss=trace.loss,
        training=trace.training,
        optimizer=trace.optimizer,
        parameters=sum(parameter.count for parameter in trace.parameters),
        trainable=sum(parameter.count for parameter in trace.parameters if parameter.trainable),
        streams=structure.streams,
        blocks=blocks,
        jumps=(),
        anomalies=find_anomalies(trace),
        backward_ran=trace.loss is not None,
        cuts=find_cuts(trace),
        attribution=attribute(trace, structure),
        facts=read_facts(trace, structure),
        depth_scale=read_depth_scale(structure.blocks, structure.streams),
    )
    return replace(profile, jumps=find_jumps(profile.shown.blocks))


def _coverage(trace: Trace, structure: Structure) -> Coverage:
    written = [value for value in trace.values if value.op is not None and value.floating]
    return Coverage(
        ops=len(trace.ops),
        ops_known=sum(op.kind is not None for op in trace.ops),
        values=len(written),
        forward=sum(value.forward is not None for value in written),
        backward=sum(value.backward is not None for value in written),
        gaps=(*trace.gaps, *structure.gaps),
    )
