"""N701: NaN or infinity in the pass."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric, profile_of
from leadline.records import Anomaly, Profile
from leadline.text import layer_label

# Ops that are infinite or not defined at zero.
BOUNDED_DOMAIN_OPS = frozenset({"log", "log2", "log10", "sqrt", "rsqrt", "div", "reciprocal", "norm", "pow"})
SOFTMAX_OPS = frozenset({"softmax", "log_softmax", "scaled_dot_product_attention"})


def _example() -> Profile:
    first = Anomaly(
        direction="forward", op="log", module="layers.1", value=7, non_finite=3, count=64, source=""
    )
    return profile_of([1.0, float("nan"), float("nan")], [float("nan")] * 3, [first])


@check(
    code="N701",
    name="non-finite",
    since="0.1.0",
    explains=("F101", "F102", "B201", "B202"),
    sick=_example(),
    healthy=geometric(blocks=3),
)
def non_finite(profile: Profile) -> Iterator[Symptom]:
    r"""A value of the forward or backward pass is NaN or infinite.

    ## What it measures
    The first op in execution order whose output contains a NaN or infinity that reaches the loss, and the first op in
    the backward pass whose gradient contains one. If a batch input or a parameter contains it already, that is named
    instead.

    ## Why it hurts
    A NaN in a gradient makes parameters NaN after one step of any optimizer, and a loss of NaN makes all gradients NaN
    at once. Everything later is a consequence: only the first op matters.

    ## When it is wrong
    Masks write $-\infty$ into attention scores, which is not reported unless it leads to NaN (a row in which everything
    is masked). A gradient scaler finds its scale by an occasional infinite gradient; this is a single pass without one.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2.
    """
    for anomaly in profile.anomalies:
        yield Symptom(
            severity="error",
            where=anomaly.module or anomaly.source or "the model itself",
            message=_message(anomaly),
            action=_action(anomaly),
            evidence={"non_finite": float(anomaly.non_finite), "count": float(anomaly.count)},
        )


def _message(anomaly: Anomaly) -> str:
    share = f"{anomaly.non_finite} of {anomaly.count} elements"
    if anomaly.source:
        return f"{anomaly.source} contains NaN or infinity in {share} before the pass begins"
    if anomaly.direction == "forward":
        return (
            f"{_place(anomaly)} makes the first NaN or infinity, in {share} of its output, from finite inputs"
        )
    return (
        f"the backward pass of {_place(anomaly)} makes the first NaN or infinity, in {share} of its gradient"
    )


def _place(anomaly: Anomaly) -> str:
    return f"{anomaly.op} in {layer_label(anomaly.module)}" if anomaly.module else anomaly.op


def _action(anomaly: Anomaly) -> str:
    if anomaly.source:
        return (
            f"Remove the NaN and infinite values from {anomaly.source}, for example with `torch.nan_to_num`."
        )
    if anomaly.op in BOUNDED_DOMAIN_OPS:
        return f"Clamp the input of {_place(anomaly)} away from 0, for example with `x.clamp(min=1e-6)`."
    if anomaly.op in SOFTMAX_OPS:
        return f"Make sure that no row of the input of {_place(anomaly)} is masked completely."
    if anomaly.direction == "forward":
        return f"Keep the inputs of {_place(anomaly)} in the range of its dtype: scale them down or run it in float32."
    return (
        f"Keep the inputs of {_place(anomaly)} away from points where its derivative is infinite, such as 0."
    )
