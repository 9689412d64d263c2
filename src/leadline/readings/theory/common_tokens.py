r"""Which keys and values are linear maps of the same tokens, in attention that is one op or written out.

Two tokens of $D$ features with the cosine $c$ have keys with the covariance $c$ and values with the covariance $c$, and
$E[c^2] = 1/D$ where the tokens are otherwise independent. Sums over pairs of keys see this product. Tokens that are
made from fewer numbers, such as the pixels of a patch, have larger cosines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.ops.table import LAYOUT_KINDS
from leadline.readings.theory.field import RandomField
from leadline.readings.theory.moment_rule import Call
from leadline.records import Op, Value

# Heuristic: the ops between a projection and attention: heads, norms, rotations, and a cache.
MAX_STEPS_TO_WEIGHT = 16

# Heuristic: the ops between logits and their product with the values: a scale, a bias, a mask, softmax, dropout.
MAX_OPS_TO_VALUES = 16

# Heuristic: bounds the search for the tensors that tokens are made of; longer chains have their full width.
MAX_STEPS_TO_INPUT = 64

_JOINING_KINDS = frozenset({"join", "select"})
_KEEP_COSINES = LAYOUT_KINDS | _JOINING_KINDS | {"norm", "dropout", "activation", "multiply"}
_PRODUCTS = ("matmul", "bmm", "einsum")


def pair_excess(call: Call, key: int, value: int) -> float:
    r"""$E[c^2]$ for the keys and values of two tokens; zero if they do not read the same tensor.

    Keys that are rotated by their position keep $\overline{\cos^2}$ of their covariance, with the mean over positions
    of the cosines of each frequency. As frequencies either turn many times or hardly at all, this is the mean cosine.
    """
    kept = 1.0
    inputs: list[tuple[int, int]] = []
    for each in (key, value):
        maker = call.value(each).op
        for _ in range(MAX_STEPS_TO_WEIGHT):
            op = None if maker is None else call.trace.ops[maker]
            if op is None or not op.inputs:
                return 0.0
            if op.kind == "weight":
                inputs.append((op.inputs[0], 1 if "conv" in op.name else -1))
                break
            if op.name == "mul" and len(op.inputs) == 2:
                kept *= _mean_rotation(call, op)
            live = [
                read
                for read in op.inputs
                if 0 not in call.value(read).shape and call.value(read).op is not None
            ]
            maker = call.value(live[0]).op if live else None
        else:
            return 0.0
    (read, features), other = inputs
    shape = call.value(read).shape
    if (read, features) != other or len(shape) < 2:
        return 0.0
    return kept * squared_cosine(call, read, shape[features])


def squared_cosine(call: Call, value: int, width: int, steps: int = MAX_STEPS_TO_INPUT) -> float:
    r"""$E[c^2]$ over pairs of tokens with `width` features; $1/n$ for $n$ independent features.

    A linear map to $m$ features with random weights makes it $E[c^2] + 1/m$. In a sum of two tensors with the shares
    $\alpha$ and $\beta$ of the variance over tokens, it is $\alpha^2 E[c_a^2] + \beta^2 E[c_b^2] + 2\alpha\beta/n$.
    """
    known = call.sources.squared_cosines
    if value not in known:
        known[value] = _squared_cosine(call, value, width, steps)
    return known[value]


def _squared_cosine(call: Call, value: int, width: int, steps: int) -> float:
    maker = call.value(value).op
    op = None if maker is None else call.trace.ops[maker]
    signals = [read for read in (op.inputs if op is not None else ()) if not _is_parameter(call.value(read))]
    if op is None or not signals or steps == 0:
        return 1 / width
    if op.kind == "weight":
        return min(1 / width + _input_cosine(call, op, signals[0], steps - 1), 1.0)
    if op.name == "add" and len(op.inputs) == 2:
        parts = [(_spread(call, read), squared_cosine(call, read, width, steps - 1)) for read in op.inputs]
        whole = sum(size for size, _ in parts)
        (a, first), (b, second) = ((size / whole if whole > 0 else 0.5, cosine) for size, cosine in parts)
        return a * a * first + b * b * second + 2 * a * b / width
    if op.kind in _KEEP_COSINES and (op.kind in _JOINING_KINDS or len(signals) == 1):
        largest = max(signals, key=lambda read: math.prod(call.value(read).shape))
        return squared_cosine(call, largest, width, steps - 1)
    return 1 / width


def _input_cosine(call: Call, op: Op, value: int, steps: int) -> float:
    """The squared cosine of what a weight reads at one position; the taps of a window are taken as independent."""
    shape = call.value(value).shape
    if "conv" not in op.name:
        return squared_cosine(call, value, shape[-1], steps)
    kernel = call.value(op.inputs[1]).shape
    channels = shape[len(shape) - len(kernel) + 1]
    taps = math.prod(kernel[2:]) if kernel[1] == channels else 1  # fewer channels in each of several groups
    return squared_cosine(call, value, channels, steps) / taps


def _is_parameter(value: Value) -> bool:
    return value.source == "parameter"


def _spread(call: Call, value: int) -> float:
    """The variance of a tensor over its tokens."""
    signal = call.signals.get(value)
    if signal is None:
        return 0.0
    field = signal.field
    shares = [share for share, size in zip(field.share[:-1], field.shape[:-1], strict=True) if size > 1]
    return max(field.ms - max(min(shares, default=0.0), 0.0), 0.0)


def _mean_rotation(call: Call, op: Op) -> float:
    """The mean of the table by which keys are rotated; 1 for other factors, which do not differ by position."""
    table = call.value(op.inputs[1])
    if not all(_has_positions(call.value(read)) for read in op.inputs) or table.forward is None:
        return 1.0
    return min(max(table.forward.mean, 0.0), 1.0)


def _has_positions(value: Value) -> bool:
    """Whether a factor differs along two axes: by position and feature, unlike the scale of a norm or its weight."""
    return sum(size > 1 for size in value.shape) > 1 and value.shape[-1] > 1


def common_tokens_gain(
    values: RandomField, axis: int, excess: float, variance: float, squared: float
) -> float:
    r"""What attention gains if keys and values read the same tokens: $(q_v - \bar v)\,e\,\sigma^2 (1 - P_2)^2$.

    Attention weights $p_j$ grow with the logits $s_j = \sigma z_j$, so that the mean token leans along one direction,
    by $E\sum_j p_j z_j = \sigma(1 - P_2)$ standard deviations (integration by parts). One direction of $D$ has the
    share $e = 1/D$ of a token, which is the `excess` of pairs.
    """
    lean = variance * max(1 - squared, 0.0) ** 2
    return max(values.ms - values.share[axis], 0.0) * excess * lean


class AttendedValues:
    """The softmax over the logits that a product of queries and keys makes, and the values that it weights."""

    __slots__ = ("logits", "values")

    def __init__(self, logits: int, values: int) -> None:
        self.logits, self.values = logits, values


def attended_values(call: Call) -> AttendedValues | None:
    """What attends by the output of this product; None if no softmax and second product follow."""
    derived, logits = set(call.op.outputs), None
    for op in call.trace.ops[call.op.index + 1 : call.op.index + 1 + MAX_OPS_TO_VALUES]:
        reads = derived.intersection(op.inputs)
        if not reads:
            continue
        if op.name in _PRODUCTS:
            others = [value for value in op.inputs if value not in derived]
            return AttendedValues(logits, others[0]) if logits is not None and others else None
        if op.name == "softmax":
            logits = op.inputs[0]
        elif _is_weight(op):
            return None
        derived.update(op.outputs)
    return None


def _is_weight(op: Op) -> bool:
    return op.kind == "weight"


class Logits:
    """The keys of attention that is written out, and the variance over keys of their products with the queries."""

    __slots__ = ("keys", "variance")

    def __init__(self, keys: int, variance: float) -> None:
        self.keys, self.variance = keys, variance


def attention_logits(call: Call, weights: int) -> Logits | None:
    """The logits behind attention weights; None if they are not a softmax over products of queries and keys."""
    is_softmax, scaled_product = False, None
    for op in _makers(call, weights):
        if op.name in _PRODUCTS:
            signal = call.signals.get(op.outputs[0] if scaled_product is None else scaled_product)
            if not is_softmax or signal is None or len(op.inputs) < 2:
                return None
            return Logits(op.inputs[1], max(signal.field.ms - signal.field.share[-1], 0.0))
        if op.name == "softmax":
            is_softmax = True
        elif op.name != "add" and is_softmax and scaled_product is None:
            scaled_product = op.outputs[0]
        if _is_weight(op):
            return None
    return None


def _makers(call: Call, value: int) -> Iterator[Op]:
    """The ops that made a value, last first, each time following the first operand that an op made from a signal."""
    for _ in range(MAX_OPS_TO_VALUES):
        maker = call.value(value).op
        if maker is None:
            return
        op = call.trace.ops[maker]
        yield op
        live = [read for read in op.inputs if call.value(read).op is not None and call.value(read).floating]
        if not live:
            return
        value = live[0]
