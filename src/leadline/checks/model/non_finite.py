"""N701: NaN or infinity in the pass."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import geometric, profile_of
from leadline.readings.anomalies import LOGARITHMS
from leadline.records import Anomaly, NonFiniteCause, Profile
from leadline.text import layer_label

# By op whose result is often taken the logarithm of, the op that computes both without rounding to zero.
LOG_FORMS = {"softmax": "F.log_softmax", "sigmoid": "F.logsigmoid"}


CAUSES: dict[NonFiniteCause, str] = {
    "zero": "because its input is 0 there",
    "negative": "because its input is negative there",
    "domain": "because its input is outside of the domain of the function",
    "masked": "because a row of its input is -inf everywhere",
    "ignored": "because every label is the ignored one, so that the mean over the labels is 0/0",
    "unweighted": "because the class weights of all labels are 0, so that the mean over the labels is 0/0",
    "empty": "because it averages over no element",
    "overflow": "from finite inputs: the result exceeds the range of its dtype",
}
ACTIONS: dict[NonFiniteCause, str] = {
    "negative": "Make the input of {place} positive, for example with `F.softplus(x)` or `x.clamp(min=1e-6)`.",
    "domain": "Clamp the input of {place} into the domain of the function, for example `x.clamp(-0.999, 0.999)`.",
    "masked": "Make sure that no row of the input of {place} is masked completely.",
    "ignored": "Give {place} at least one label that is not `ignore_index`: look at what makes the labels, or skip "
    "such a batch.",
    "unweighted": "Give the classes of these labels a weight above 0 in {place}.",
    "empty": "Skip the batch if nothing is selected before {place}, or divide a sum by `count.clamp(min=1)`.",
    "overflow": "Keep the inputs of {place} in the range of its dtype: scale them down or run it in float32.",
}
# What to write instead of an op that is infinite at zero, or whose derivative is.
SAFE_FORMS = {
    "sqrt": "`(x + 1e-12).sqrt()`",
    "rsqrt": "`(x + 1e-12).rsqrt()`",
    "div": "`x / y.clamp(min=1e-6)`",
    "norm": "`(x.square().sum(dim) + 1e-12).sqrt()`",
    "vector_norm": "`(x.square().sum(dim) + 1e-12).sqrt()`",
    "linalg_vector_norm": "`(x.square().sum(dim) + 1e-12).sqrt()`",
    "linalg_norm": "`(x.square().sum(dim) + 1e-12).sqrt()`",
}


def _example() -> Profile:
    first = Anomaly(
        direction="forward",
        op="log",
        module="layers.1",
        value=7,
        non_finite=3,
        count=64,
        source="",
        cause="zero",
    )
    return profile_of([1.0, float("nan"), float("nan")], [float("nan")] * 3, [first])


@check(
    code="N701",
    name="non-finite",
    since="0.1.0",
    explains=("F101", "F102", "B201", "B202", "U508"),
    sick=_example(),
    healthy=geometric(blocks=3),
)
def non_finite(profile: Profile) -> Iterator[Symptom]:
    r"""A value of the forward or backward pass is NaN or infinite.

    ## What it measures
    The first op in execution order whose output contains a NaN or infinity that reaches the loss, and the first op in
    the backward pass whose gradient contains one (only if the forward pass is finite). If a batch input or a parameter
    contains it already, that is named instead. An op that makes NaN of an infinity is not the cause: in $p \log p$ at
    $p = 0$ it is the logarithm, not the product. The finding says why the op did it: an input of zero, a negative one,
    a row that is masked completely, a mean over no label, or a result beyond the range of its dtype.

    ## Why it hurts
    A NaN in a gradient makes parameters NaN after one step of any optimizer, and a loss of NaN makes all gradients NaN
    at once. Everything later is a consequence: only the first op matters.

    ## When it is wrong
    Masks write $-\infty$ into attention scores, which is not reported unless it leads to NaN (a row in which everything
    is masked). A gradient scaler finds its scale by an occasional infinite gradient; this is a single pass without one.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2.
    """
    forward = [each for each in profile.anomalies if each.direction == "forward"]
    for anomaly in forward or profile.anomalies:  # a loss that is not finite makes every gradient NaN
        yield Symptom(
            severity="error",
            where=anomaly.module or anomaly.source or "the model itself",
            message=describe_anomaly(anomaly),
            action=anomaly_action(anomaly),
            evidence={"non_finite": float(anomaly.non_finite), "count": float(anomaly.count)},
        )


def describe_anomaly(anomaly: Anomaly) -> str:
    """Which op makes the first NaN or infinity, where, and why."""
    share = f"{anomaly.non_finite} of {anomaly.count} elements"
    if anomaly.source:
        return f"{anomaly.source} contains NaN or infinity in {share} before the pass begins"
    if anomaly.direction == "forward":
        turned = f"; {anomaly.after} makes NaN of it" if anomaly.after else ""
        return (
            f"{_place(anomaly)} makes the first NaN or infinity, in {share} of its output, "
            f"{CAUSES[anomaly.cause]}{turned}"
        )
    of = f"{anomaly.after} after {_place(anomaly)}" if anomaly.after else _place(anomaly)
    why = f", {CAUSES['zero']}" if anomaly.cause == "zero" else ""
    return f"the backward pass of {of} makes the first NaN or infinity, in {share} of its gradient{why}"


def _place(anomaly: Anomaly) -> str:
    inside = f"{anomaly.op} in {layer_label(anomaly.module)}" if anomaly.module else anomaly.op
    return inside if anomaly.place is None else f"{inside} ({anomaly.place})"


def anomaly_action(anomaly: Anomaly) -> str:
    """What to write instead."""
    place = _place(anomaly)
    if anomaly.source:
        return (
            f"Remove the NaN and infinite values from {anomaly.source}, for example with `torch.nan_to_num`."
        )
    if anomaly.cause == "zero":
        return _action_at_zero(anomaly)
    if anomaly.cause == "overflow" and anomaly.direction == "backward":
        return f"Keep the inputs of {place} away from points where its derivative is infinite, such as 0."
    return ACTIONS[anomaly.cause].format(place=place)


def _action_at_zero(anomaly: Anomaly) -> str:
    """What to write instead of an op that is infinite at zero, or whose derivative is."""
    place = _place(anomaly) if anomaly.place is None else str(anomaly.place)
    if anomaly.op not in LOGARITHMS:
        return f"Write {SAFE_FORMS.get(anomaly.op, '`x.clamp(min=1e-6)` for the input')} in {place}."
    if anomaly.op == "log" and anomaly.operand in LOG_FORMS:
        form = LOG_FORMS[anomaly.operand]
        return f"Write `{form}(x)` instead of the log of the {anomaly.operand} in {place}: it does not round to 0."
    if anomaly.entropy and not anomaly.learned:
        return f"Write `torch.xlogy(p, p)` instead of `p * p.log()` in {place}: it is 0 where p is 0."
    clamped = f"x.clamp(min=torch.finfo(x.dtype).tiny).{anomaly.op}()"
    if anomaly.entropy:
        return f"Write `x * {clamped}` instead of `x * x.{anomaly.op}()` in {place}: it is 0 where x is 0."
    return f"Write `{clamped}` in {place}, or keep its input above 0 with `F.softplus`."
