"""Parts of a network that are recognized by their pattern of ops, or by the values of their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.case import Case
from leadline.readings.pretrained import read_trained
from leadline.readings.wiring.attention import read_attention_products
from leadline.readings.wiring.frozen import read_frozen_weights
from leadline.readings.wiring.patterns import read_merged_layers, read_moved_axes
from leadline.readings.wiring.routing import read_routers
from leadline.readings.wiring.streams import read_mixings
from leadline.records import Module, Trace
from leadline.records.parts import NetworkParts, RepeatedModule, RoundedAngle
from leadline.records.wiring import OpSite

# Cited: IEEE 754 (and bfloat16): bits of the significand, including the implicit one.
SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
# The type of a list of layers that can be called.
SEQUENTIAL = "torch.nn.modules.container.Sequential"
# Heuristic: radians; one sixth of a period, so that neighbors fall on unrelated points of the wave.
MAX_ANGLE_SPACING = 1.0


def read_parts(trace: Trace, case: Case | None) -> NetworkParts:
    """All parts of the traced network; `case` is the live one, None if only its trace is known."""
    trained, trained_names = (None, ()) if case is None else read_trained(trace, case)
    return NetworkParts(
        attentions=tuple(read_attention_products(trace)),
        routers=read_routers(trace),
        mixings=tuple(read_mixings(trace)),
        angles=tuple(_rounded_angles(trace)),
        repeated=tuple(_repeated_modules(trace)),
        moved_axes=tuple(read_moved_axes(trace)),
        merged=tuple(read_merged_layers(trace)),
        frozen=None if case is None else read_frozen_weights(trace, case),
        trained=trained,
        trained_names=trained_names,
    )


def _rounded_angles(trace: Trace) -> Iterator[RoundedAngle]:
    """Sines and cosines of numbers so large that their dtype skips a radian or more."""
    for op in trace.ops:
        if op.name not in ("sin", "cos") or not op.inputs:
            continue
        angle = trace.values[op.inputs[0]]
        bits = SIGNIFICAND_BITS.get(angle.dtype)
        if bits is None or angle.forward is None or not 0 < angle.forward.abs_max < math.inf:
            continue
        spacing = 2.0 ** (math.floor(math.log2(angle.forward.abs_max)) + 1 - bits)
        if spacing >= MAX_ANGLE_SPACING:
            site = OpSite(op=op.name, module=op.module, source=op.source)
            yield RoundedAngle(site=site, dtype=angle.dtype, largest=angle.forward.abs_max, spacing=spacing)


def _repeated_modules(trace: Trace) -> Iterator[RepeatedModule]:
    """Module objects with parameters that have several names in one place, as in `[layer] * 6` or `conv3 = conv2`.

    Names of attributes count only if one use reads what another computes: a shared head may have a name for each task.
    """
    containers = {each.path for each in trace.modules if each.container or each.type == SEQUENTIAL}
    for module in trace.modules:
        parent = module.path.rpartition(".")[0]
        is_listed = parent in containers
        paths = [path for path in (module.path, *module.aliases) if path.rpartition(".")[0] == parent]
        if len(paths) < 2:
            continue
        count = sum(each.count for each in trace.parameters if each.name.startswith(f"{module.path}."))
        if count and (is_listed or _is_chained(trace, module)):
            yield RepeatedModule(
                paths=tuple(paths),
                type=module.type,
                parameters=count,
                is_chained=_is_chained(trace, module),
                is_listed=is_listed,
            )


def _is_chained(trace: Trace, module: Module) -> bool:
    """Whether something that the first call computes is read by the second."""
    prefix = f"{module.path}."
    inside = [op for op in trace.ops if op.module == module.path or op.module.startswith(prefix)]
    first = {value for op in inside if op.call == 0 for value in op.outputs}
    later = [op for op in inside if op.call == 1]
    if not first or not later:
        return False
    reached = set(first)
    for op in trace.ops:
        if reached & set(op.inputs):
            reached.update(op.outputs)
            if op.call == 1 and op in later:
                return True
    return False
