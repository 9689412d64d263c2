"""From a history with a NaN in it, the timeline says which step and layer, and what happened before."""

from __future__ import annotations

import math

import pytest

from leadline.checks._examples import stack_with
from leadline.checks._history import History, RunLayout
from leadline.checks._timeline import MAX_SHOWN_STEPS, first_cause, render_timeline
from leadline.records import Anomaly, ModelFacts, Precision
from leadline.records.run import Sample

NAMES = tuple(f"layers.{index}.weight" for index in range(4))
LAYOUT = RunLayout(
    parameters=NAMES, blocks=tuple(f"layers.{i}" for i in range(4)), parameter_blocks=(0, 1, 2, 3)
)
NAN = math.nan


def run(steps: int = 40, **last: object) -> History:
    """Healthy steps, then one in which some numbers are replaced."""
    history = History(LAYOUT)
    scalars = {"loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "update_norm": 0.1, "weight_norm": 5.0}
    vectors = {"grad_norm": [0.5] * 4, "update_norm": [0.05] * 4, "weight_norm": [2.5] * 4}
    for step in range(steps):
        history.add(Sample(step=step, scalars=scalars, vectors=vectors))
    numbers = {name: value for name, value in last.items() if isinstance(value, float)}
    rows = {name: value for name, value in last.items() if isinstance(value, list)}
    history.add(Sample(step=steps, scalars=scalars | numbers, vectors=vectors | rows))
    return history


def test_a_history_without_a_nan_has_no_cause():
    assert first_cause(run()) is None


def test_a_loss_that_breaks_first_points_at_the_forward_pass():
    cause = first_cause(run(loss=NAN, grad_norm=NAN))
    assert (cause.step, cause.metric, cause.where) == (40, "loss", "the forward pass")


def test_gradients_that_break_point_at_the_deepest_block_that_has_one():
    history = run(grad_norm=NAN)
    history.add(Sample(step=41, scalars={"loss": NAN, "grad_norm": NAN}, vectors={"grad_norm": [NAN] * 4}))
    broken = run()
    broken.add(
        Sample(step=41, scalars={"grad_norm": math.inf}, vectors={"grad_norm": [NAN, NAN, math.inf, 0.5]})
    )
    cause = first_cause(broken)
    assert (cause.step, cause.metric, cause.where, cause.layers) == (
        41,
        "gradient",
        "layers.2.weight",
        (2, 2),
    )
    assert first_cause(history).step == 40


@pytest.mark.parametrize(
    "owners",
    [(0, 1, 2, None), (0, 1, None, 2), (None, 0, 1, 2)],
    ids=["the head has no block", "the norm before it has none", "the embedding has none"],
)
def test_gradients_that_break_everywhere_point_at_what_is_nearest_to_the_loss(owners: tuple[int | None, ...]):
    history = History(RunLayout(parameters=NAMES, blocks=("a", "b", "c"), parameter_blocks=owners))
    history.add(Sample(step=0, scalars={"grad_norm": NAN}, vectors={"grad_norm": [NAN] * 4}))
    assert first_cause(history).where == "layers.3.weight"


def test_an_update_that_breaks_points_at_the_optimizer():
    broken = run()
    rows = {"update_norm": [0.1, math.inf, 0.1, 0.1], "weight_norm": [2.5, NAN, 2.5, 2.5]}
    broken.add(Sample(step=41, scalars={"update_norm": math.inf, "weight_norm": NAN}, vectors=rows))
    cause = first_cause(broken)
    assert (cause.metric, cause.where, cause.layers) == ("update", "layers.1.weight", (1, 1))


def test_the_first_broken_step_wins_over_later_ones_that_break_more():
    history = run(grad_norm=NAN)
    history.add(Sample(step=41, scalars={"loss": NAN, "grad_norm": NAN}))
    assert (first_cause(history).step, first_cause(history).metric) == (40, "gradient")


def test_a_step_that_mixed_precision_skipped_is_not_the_cause():
    history = History()
    for step in range(20):
        broken = step == 10
        scalars = {
            "loss": 2.0,
            "grad_norm": math.inf if broken else 1.0,
            "update_norm": 0.0 if broken else 0.1,
        }
        history.add(Sample(step=step, scalars=scalars | {"loss_scale": 65536.0}))
    assert first_cause(history) is None
    history.add(
        Sample(step=20, scalars={"loss": NAN, "grad_norm": NAN, "update_norm": 0.0, "loss_scale": 1.0})
    )
    assert first_cause(history).metric == "loss"


def test_a_metric_that_grew_before_is_a_suspect_with_its_step():
    history = run()
    for step in range(41, 46):
        grown = 0.05 * 3.0 ** (step - 40)
        rows = {"update_norm": [0.05, grown, 0.05, 0.05], "grad_norm": [0.5] * 4}
        history.add(
            Sample(step=step, scalars={"loss": 2.0, "grad_norm": 1.0, "update_norm": grown}, vectors=rows)
        )
    history.add(Sample(step=46, scalars={"loss": NAN, "grad_norm": NAN}))
    suspect = first_cause(history).suspects[0]
    assert suspect.what in ("the update", "the update of layers.1.weight")
    assert suspect.since == 41
    assert suspect.factor == pytest.approx(3.0**5, rel=0.01)


def test_a_trace_of_the_broken_step_names_the_op():
    made = Anomaly(
        direction="forward", op="log", module="layers.2", value=7, non_finite=3, count=8, source=""
    )
    cause = first_cause(run(loss=NAN), anomalies=[made])
    assert (cause.op, cause.where) == ("log", "layers.2")
    assert "log in layers.2" in cause.sentence


def test_the_last_finite_profile_gives_the_distance_from_the_limit():
    precision = Precision(
        dtype="float16", parameters="float16", tiny=6e-8, huge=65504.0, largest=6550.4, largest_at="", lost=0.0,
        lost_at="",
    )  # fmt: skip
    cause = first_cause(run(loss=NAN), good=stack_with(ModelFacts(precision=precision)), good_step=32)
    assert cause.margin == pytest.approx(10.0)
    assert "the last finite trace at step 32 stayed a factor of 10 below" in render_timeline(cause)


def test_the_timeline_reads_as_text_with_the_broken_step_marked():
    text = render_timeline(first_cause(run(loss=NAN)))
    assert text.startswith("At step 40 the loss is not finite")
    assert "\n>       40          nan" in text
    assert "Nothing grew before" in text
    assert sum(line.lstrip("> ")[:2].strip().isdigit() for line in text.splitlines()) == MAX_SHOWN_STEPS


def test_a_gradient_that_ranks_share_is_not_blamed_on_this_one():
    def broken(ranks: int) -> str:
        history = History(RunLayout(parameters=("stem", "head")), ranks=ranks)
        for step in range(4):
            norms = [math.nan if step == 3 else 1.0] * 2
            history.add(
                Sample(step=step, scalars={"loss": 1.0, "grad_norm": norms[0]}, vectors={"grad_norm": norms})
            )
        return first_cause(history).sentence

    assert broken(1).endswith("gradients are not: the backward pass broke at head")
    assert "another rank produced them, or" in broken(2)
