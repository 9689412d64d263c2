"""A model check is silent just within the limit that its page names, and fires just beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from leadline.checks import model_checks
from leadline.checks._examples import (
    each_block,
    geometric,
    parameter_step,
    profile_of,
    residual,
    stack_with,
    stack_with_decay,
    stack_with_likeness,
    stack_with_scaled_init,
    stack_with_step_size,
    stack_with_update,
    weight,
)
from leadline.checks._streams import streams_example
from leadline.checks._wiring_examples import SITE, asked, with_parts
from leadline.records import (
    Attention,
    AttentionProduct,
    Attribution,
    Clones,
    EpsSite,
    Factor,
    Finding,
    Head,
    InputSignal,
    LowRankStep,
    ModelFacts,
    Optimizer,
    OutputRange,
    ParamGroup,
    Profile,
    Router,
    Units,
)
from leadline.records.wiring import Reduction

CHECKS = {check.code: check for check in model_checks()}


def findings(code: str, profile: Profile) -> list[Finding]:
    return list(CHECKS[code](profile))


def units(**counts: int) -> Profile:
    return each_block(geometric(blocks=6), units=Units(count=100, **{"dead": 0, **counts}))


def optimized(profile: Profile, name: str) -> Profile:
    group = ParamGroup(parameters=(), lr=1e-3, weight_decay=0.0, options={})
    return replace(profile, optimizer=Optimizer(name=name, groups=(group,), steps=0))


def branches(blocks: int = 12, **fields: Any) -> Profile:
    return each_block(geometric(blocks=blocks), residual=residual(**fields))


def coherent(branch: float = 0.3, stream: float = 0.8, blocks: int = 16) -> Profile:
    shares = residual(branch_mean_share=branch)
    return each_block(geometric(blocks=blocks), residual=shares, mean_share=stream)


def gradients(largest: float, blocks: int = 10) -> Profile:
    """Blocks with a squared gradient of 1, and one with this share of the sum."""
    sizes = [1.0] * (blocks - 1) + [(blocks - 1) * largest / (1 - largest)]
    weights = tuple(weight(index, grad_ms=size) for index, size in enumerate(sizes, 1))
    return stack_with(ModelFacts(weights=weights), blocks=blocks + 2)


def step_of(optimizer: str, **fields: Any) -> Profile:
    return stack_with_step_size(optimizer=optimizer, **fields)


def rate_over_safe(ratio: float, optimizer: str = "AdamW", **fields: Any) -> Profile:
    """A step at this multiple of the safe rate that raises the loss, mostly in one block."""
    raised = {"measured_loss_change": 0.8, "ratio": -8.0, **fields}
    return stack_with_update(shares=[0.7, 0.2, 0.1], optimizer=optimizer, safe_lr=1e-3 / ratio, **raised)


def adapter(change: float) -> Profile:
    step = LowRankStep(base="layers.0.weight", rank=8, scale=2.0, change=change, base_size=1.0)
    return stack_with_update(low_rank=(step,))


def first_loss(excess: float, optimizer: str = "SGD") -> Profile:
    head = Head(
        loss="cross_entropy", value=math.log(10) + excess, classes=10, logit_ms=4.0, logit_max=6.0, behind=""
    )
    return optimized(stack_with(ModelFacts(head=head)), optimizer)


def read(rms: float) -> Profile:
    source = InputSignal(name="input", ms=rms**2, elements=64, normalized=False)
    return stack_with(ModelFacts(sources=(source,)))


def branch_weights(variance: float, count: int = 8) -> Profile:
    weights = tuple(weight(block, residual=True, variance=variance) for block in range(count))
    return stack_with(ModelFacts(weights=weights))


def power_of_depth(power: float, optimizer: str = "AdamW", blocks: int = 64) -> Profile:
    """Residual blocks whose branches are their number to the power -`power`."""
    return optimized(branches(blocks - 1, branch_ms=blocks ** (-2 * power)), optimizer)


def activated(blocks: int, share: float = 1.0) -> Profile:
    """Residual blocks of which this share ends in an activation."""
    active = range(round(share * blocks))
    factors = tuple(Factor(block=index, kind="activation", op="relu", backward=-0.5) for index in active)
    return replace(branches(blocks - 1), attribution=Attribution(factors=factors))


def post_norm(predicted_decrease: float | None, sublayers: int = 12, **fields: Any) -> Profile:
    """Post-norm sub-layers with attention, whose first step is predicted to lower the loss like this."""
    plain = geometric(blocks=8) if predicted_decrease is None else stack_with_step_size(
        predicted_decrease=predicted_decrease
    )  # fmt: skip
    attention = Attention(block=0, module="attn", keys=16, purity=0.1, uniform=1 / 16, logit_var=1.0)
    facts = replace(plain.facts or ModelFacts(), attentions=(attention,))
    block = replace(plain.blocks[0], residual=residual(placement="post", **fields))
    return replace(plain, facts=facts, blocks=(block,) * sublayers)


def routed(*load: int, chosen: int = 1, sound: int = 0) -> Profile:
    """One router with this load, and others whose load is even."""
    router = Router(
        site=SITE, weight="router.weight", experts=len(load), chosen=chosen, load=load, gradient="finite"
    )
    even = replace(router, load=(100,) * len(load))
    return with_parts(routers=(router, *(even,) * sound))


def unscaled(variance: float = 16.0, width: int = 64, independence: float = 1.0) -> Profile:
    """An attention without a factor; independent queries and keys have `independence` 1."""
    product = AttentionProduct(
        site=SITE, width=width, keys=32, variance=variance, query_ms=1.0,
        key_ms=variance / width / independence, has_factor=False,
    )  # fmt: skip
    return with_parts(attentions=(product,))


def reduced(*, halves: tuple[int, int] = (60, 60), largest: float = 1.0, weight: float = 1.0) -> Profile:
    return asked(
        reduction=Reduction(
            targets=sum(halves), total_weight=weight, halves=halves, largest_over_smallest=largest
        )
    )


def reach(outside: float) -> Profile:
    return asked(
        loss="mse_loss", output_range=OutputRange(site=SITE, low=0.0, high=math.inf, outside=outside)
    )


def eps(share: float) -> Profile:
    return stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=1e-5 / share)])


def swallowed(share: float) -> Profile:
    return stack_with_update(parameters=(parameter_step(dtype="bfloat16", swallowed=share),))


def stable(ratio: float) -> Profile:
    return stack_with_update(sharpness=1e4, sharpness_kind="lanczos", stability_lr=1e-3 / ratio)


def zero_before_the_head(blocks: int) -> Profile:
    return profile_of([1.0] * blocks, [0.0] * blocks)


def signal_law(e_folds: float, optimizer: str = "SGD") -> Profile:
    """A stack whose signal changes by so many e-folds from its first block to its last, evenly."""
    return optimized(geometric(blocks=16, forward_gain=math.exp(e_folds / 15)), optimizer)


def edges() -> Iterator[tuple[str, str, Profile, Profile]]:
    """Code of the check, the quantity, a profile within its limit, and one beyond."""
    yield from _edges_of_the_signal()
    yield from _edges_of_the_structure()
    yield from _edges_of_the_step()
    yield from _edges_of_the_question()


def _edges_of_the_signal() -> Iterator[tuple[str, str, Profile, Profile]]:
    yield "F101", "growth of the signal", signal_law(6.99), signal_law(7.01)
    yield "F103", "units at a bound", units(saturated=50), units(saturated=51)
    yield "F104", "units that are zero", units(dead=75), units(dead=76)
    yield "F105", "mean of a branch", coherent(branch=0.1), coherent(branch=0.11)
    yield "F105", "mean of the stream", coherent(stream=0.5), coherent(stream=0.51)
    yield "F105", "number of branches", coherent(blocks=7), coherent(blocks=8)
    yield "F106", "likeness, Adam", _alike(0.985, "Adam"), _alike(0.986, "Adam")
    yield "F106", "likeness, SGD", _alike(0.95, "SGD"), _alike(0.951, "SGD")
    yield "F106", "likeness at the start", _alike(0.99, "Adam", first=0.9), _alike(0.99, "Adam", first=0.89)
    yield "F108", "small stream", branches(skip_ms=1.01e-4), branches(skip_ms=0.99e-4)
    yield "F108", "large stream", branches(skip_ms=0.99e6), branches(skip_ms=1.01e6)
    yield "F109", "small input", read(0.0201), read(0.0199)
    yield "F109", "large input", read(49.9), read(50.1)
    yield "B204", "share of one block", gradients(0.989), gradients(0.991)
    yield "B204", "number of blocks", gradients(0.999, blocks=7), gradients(0.999, blocks=8)
    yield "B206", "blocks before the head", zero_before_the_head(1), zero_before_the_head(2)


def _alike(last: float, optimizer: str, first: float = 0.1) -> Profile:
    return optimized(stack_with_likeness([first, 0.9, 0.9, last]), optimizer)


def _edges_of_the_structure() -> Iterator[tuple[str, str, Profile, Profile]]:
    yield "I306", "sub-layers", _scaled_twice(7), _scaled_twice(8)
    yield "I306", "power of the factor", _scaled_twice(32, 0.39), _scaled_twice(32, 0.41)
    yield "I308", "first loss", first_loss(3.99), first_loss(4.01)
    yield "I310", "small weights", branch_weights(1.01e-4), branch_weights(0.99e-4)
    yield "I310", "large weights", branch_weights(15.9), branch_weights(16.1)
    yield "I310", "number of weights", branch_weights(256.0, count=2), branch_weights(256.0, count=3)
    yield "R402", "predicted decrease", post_norm(0.49), post_norm(0.51)
    yield "R402", "alpha", post_norm(2.0, skip_scale=1.21), post_norm(2.0, skip_scale=1.19)
    yield "R403", "blocks", activated(160), activated(161)
    yield "R403", "share of the blocks", activated(200, share=0.8), activated(200, share=0.81)
    yield "R404", "branch over skip", branches(branch_ms=1.01e-10), branches(branch_ms=0.99e-10)
    yield "R404", "branches in a row", _first_blocks(3, branch_ms=1e-14), _first_blocks(4, branch_ms=1e-14)
    yield "R405", "branch over skip", branches(branch_ms=29.9), branches(branch_ms=30.1)
    yield "R405", "branches in a row", _first_blocks(3, branch_ms=200.0), _first_blocks(4, branch_ms=200.0)
    yield "R406", "sub-layers", stack_with_scaled_init(22), stack_with_scaled_init(23)
    yield (
        "R406",
        "scale",
        stack_with_scaled_init(64, branch_scale=0.89),
        stack_with_scaled_init(64, branch_scale=0.9),
    )
    yield "R411", "power below a half", power_of_depth(0.34), power_of_depth(0.36)
    yield "R411", "power above a half", power_of_depth(0.66), power_of_depth(0.64)
    yield "R411", "power near one", power_of_depth(0.84, "SGD"), power_of_depth(0.86, "SGD")
    yield "R411", "blocks", power_of_depth(0.5, blocks=31), power_of_depth(0.5, blocks=32)
    yield "R412", "growth", streams_example(forward_gain=7.9), streams_example(forward_gain=8.1)
    yield "R412", "decay", _mixed(0.0101), _mixed(0.0099)
    yield "R413", "sums of rows", streams_example(row_error=0.1), streams_example(row_error=0.11)
    yield "R413", "sums of columns", streams_example(column_error=0.1), streams_example(column_error=0.11)
    yield "R414", "spread", *(streams_example(spread=each, gradient_spread=0.0) for each in (2e-9, 0.9e-9))
    yield "W603", "eps", eps(0.099), eps(0.101)


def _scaled_twice(blocks: int, power: float = 0.5) -> Profile:
    return stack_with_scaled_init(blocks - 1, branch_scale=blocks**-power)


def _first_blocks(count: int, **fields: Any) -> Profile:
    """A residual stack of which only the first blocks have these fields."""
    plain = branches()
    changed = tuple(replace(block, residual=residual(**fields)) for block in plain.blocks[:count])
    return replace(plain, blocks=(*changed, *plain.blocks[count:]))


def _mixed(gain: float) -> Profile:
    return streams_example(forward_gain=gain, backward_gain=gain)


def _edges_of_the_step() -> Iterator[tuple[str, str, Profile, Profile]]:
    yield "U502", "rate, Adam", rate_over_safe(63.0), rate_over_safe(65.0)
    yield "U502", "rate, SGD", rate_over_safe(9.9, "SGD"), rate_over_safe(10.1, "SGD")
    yield "U503", "rate", stable(1.99), stable(2.01)
    yield "U504", "rate", *(rate_over_safe(each, warmup_steps=100) for each in (1.99, 2.01))
    yield "U506", "share of the weights", swallowed(0.5), swallowed(0.51)
    yield "U521", "relative step, Adam", step_of("AdamW", relative=0.99), step_of("AdamW", relative=1.01)
    yield "U521", "relative step, SGD", step_of("SGD", relative=0.49), step_of("SGD", relative=0.51)
    yield "U522", "relative step, Adam", step_of("AdamW", relative=3e-4), step_of("AdamW", relative=2.9e-4)
    yield "U522", "decrease, SGD", *(step_of("SGD", predicted_decrease=each) for each in (0.002, 0.0019))
    yield "U523", "decrease, Adam", *(step_of("AdamW", predicted_decrease=each) for each in (9.9, 10.1))
    yield "U523", "decrease, SGD", *(step_of("SGD", predicted_decrease=each) for each in (49.0, 51.0))
    yield "U524", "decay", stack_with_step_size(decay=0.0199), stack_with_step_size(decay=0.0201)
    yield "U532", "change", adapter(0.3), adapter(0.31)
    yield "U533", "change", adapter(1.01e-5), adapter(0.99e-5)


def _edges_of_the_question() -> Iterator[tuple[str, str, Profile, Profile]]:
    yield "D908", "foreign gradient", *(asked(foreign_gradient=each) for each in (0.049, 0.051))
    yield "D909", "toward the target", *(asked(toward_target=each) for each in (0.11, 0.09))
    yield "D911", "share of one answer", _answers(0.94, 1000), _answers(0.96, 1000)
    yield "D911", "number of answers", _answers(0.96, 15), _answers(0.96, 16)
    yield "D911", "number of classes", _answers(1.0, 10, classes=7), _answers(1.0, 10, classes=8)
    yield "D912", "whole over halves", *(asked(whole_over_halves=each) for each in (1.89, 1.91))
    yield "D912", "weight of each target", reduced(weight=59.0), reduced(weight=61.0)
    yield "D913", "target over output", *(_scale(target=each) for each in (29.9, 30.1))
    yield "D913", "small outputs", *(_scale(target=each, output=0.1) for each in (29.9, 30.1))
    yield "D921", "variance", unscaled(1.49), unscaled(1.51)
    yield "D921", "width", unscaled(width=3), unscaled(width=4)
    yield "D921", "queries like keys", unscaled(independence=3.1), unscaled(independence=2.9)
    yield "D921", "queries unlike keys", unscaled(independence=0.32), unscaled(independence=0.35)
    yield "D922", "tokens per expert", routed(31, 0, 0, 0), routed(32, 0, 0, 0)
    yield "D922", "share of the busiest", routed(90, 4, 3, 3), routed(91, 3, 3, 3)
    yield "D922", "experts per token", routed(95, 95, 3, chosen=2), routed(95, 95, 3, 3, chosen=2)
    yield "D930", "weights of targets", reduced(largest=1.24), reduced(largest=1.26)
    yield "D930", "targets of the halves", reduced(halves=(74, 60)), reduced(halves=(76, 60))
    yield "D930", "a mean", *(reduced(halves=(90, 30), weight=each) for each in (1.02, 1.005))
    yield "D931", "share outside", reach(0.05), reach(0.051)


def _answers(share: float, counted: int, classes: int = 10) -> Profile:
    return asked(classes=classes, counted=counted, ignored=0, top_share=share, distinct=2)


def _scale(target: float, output: float = 1.0) -> Profile:
    return asked(loss="mse_loss", output_scale=output, target_scale=target, target_spread=1.0)


EDGES = list(edges())


@pytest.mark.parametrize(
    ("code", "within", "beyond"),
    [(code, within, beyond) for code, _, within, beyond in EDGES],
    ids=[f"{code}-{quantity}" for code, quantity, _, _ in EDGES],
)
def test_a_check_is_silent_within_its_limit_and_fires_beyond_it(code: str, within: Profile, beyond: Profile):
    assert findings(code, within) == []
    assert len(findings(code, beyond)) == 1


def severities(code: str, profiles: Sequence[Profile]) -> list[str]:
    return [finding.severity for profile in profiles for finding in findings(code, profile)]


def clones(count: int) -> Profile:
    return stack_with(ModelFacts(clones=(Clones(names=("a.w", "b.w"), count=count, layers=(0, 7)),)))


def column(foreign: float) -> Profile:
    return asked(loss="mse_loss", predictions=(8, 1), targets=(8, 1), foreign_gradient=foreign)


SEVERITIES: list[tuple[str, str, Sequence[Profile], list[str]]] = [
    ("F103", "most units", [units(saturated=95), units(saturated=96)], ["info", "warning"]),
    ("F104", "nearly all units", [units(dead=97), units(dead=98)], ["warning", "error"]),
    ("I303", "copies", [clones(23), clones(24)], ["info", "warning"]),
    ("I308", "with Adam", [first_loss(199.0, "Adam"), first_loss(201.0, "Adam")], ["info", "warning"]),
    ("W603", "eps of the size of the input", [eps(0.99), eps(1.01)], ["info", "warning"]),
    ("U502", "Adam", [rate_over_safe(255.0), rate_over_safe(257.0)], ["warning", "error"]),
    ("U502", "SGD", [rate_over_safe(39.9, "SGD"), rate_over_safe(40.1, "SGD")], ["warning", "error"]),
    ("R402", "no optimizer", [post_norm(None, 48), post_norm(None, 49)], ["info", "warning"]),
    ("R402", "a short step", [post_norm(0.1, 23), post_norm(0.1, 24)], ["info"]),
    ("D908", "a column", [column(0.49), column(0.51)], ["info", "error"]),
    ("D921", "sharp", [unscaled(3.9), unscaled(4.1)], ["info", "warning"]),
    ("D922", "half of the routers", [routed(91, 3, 3, 3, sound=1), routed(91, 3, 3, 3)], ["info", "warning"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "profiles", "expected"),
    [(code, profiles, expected) for code, _, profiles, expected in SEVERITIES],
    ids=[f"{code}-{quantity}" for code, quantity, _, _ in SEVERITIES],
)
def test_a_finding_is_more_serious_beyond_its_second_limit(
    code: str, profiles: Sequence[Profile], expected: list[str]
):
    assert severities(code, profiles) == expected


def test_a_loss_stuck_at_a_constant_is_reported_with_its_rate_and_without_one():
    sick = CHECKS["U525"].sick
    (finding,) = findings("U525", sick)
    assert f"at learning rate {sick.update.lr:.3g}" in finding.message
    (finding,) = findings("U525", replace(sick, update=None))
    assert "learning rate" not in finding.message
