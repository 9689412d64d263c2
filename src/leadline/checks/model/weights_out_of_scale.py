"""I310: the weights of residual branches are far too small or too large for what they read."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.checks._steps import optimizer_family
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import ModelFacts, Profile, Weight

# Heuristic: gain of the median weight. Branches that are scaled down by depth, as in GPT-2 with 100 layers, have 1e-2.
MIN_GAIN = 1e-4
# Derived: attention logits of normalized queries and keys have the gain as standard deviation, and softmax over n keys
# gives all its weight to one of them beyond sqrt(2 ln n): 4 for thousands of keys. Four times that is no accident.
MAX_GAIN = 16.0


def _example(variance: float) -> Profile:
    weights = tuple(weight(block, residual=True, variance=variance) for block in range(8))
    return stack_with(ModelFacts(weights=weights))


@check(
    code="I310",
    name="weights-out-of-scale",
    since="0.1.0",
    refuted_by="learning",
    explains=("B201", "B202", "F101", "I308", "F108", "F107"),
    sick=_example(256.0),
    healthy=_example(0.3),
)
def weights_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""The weights of residual branches start far too small or too large for what they read.

    ## What it measures
    The median over the weights of all residual branches of $\sigma_w^2 = n\,E[W^2]$, $n$ the fan-in: the factor by
    which a layer multiplies the mean square of its input. Theory needs about 1; published schemes have 0.01 to 7. Fires
    below `MIN_GAIN` = 1e-4 and above `MAX_GAIN` = 16. Weights that are exactly zero do not count. Small weights are a
    note, and a warning with optimizers whose steps are proportional to the gradient (SGD).

    ## Why it hurts
    With large weights attention starts at one key per query and logits start with a loss far above that of guessing.
    The gradient of a softmax in that state is almost zero. Adam changes a weight by about its rate per step, so that it
    takes thousands of steps to shrink them. With tiny weights a branch is a product of factors that are all near zero:
    each of them gets a gradient that the others have made as small, so that the block stays closed for many steps. Adam
    opens it within tens of steps, because it divides by the size of the gradient; SGD does not.

    ## When it is wrong
    Weights that a constant in the code rescales when they are used (as in networks with equalized learning rates) have
    another size than the one that counts.

    ## References
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, section 4.2;
    Derrida, "Random-energy model", 1981 (the $\sqrt{2 \ln n}$ at which one term carries the sum).
    """
    weights = [
        each for each in _weights(profile) if each.residual and each.variance > 0 and not each.constant
    ]
    if len(weights) < MIN_STACK_LAYERS:
        return
    gain = median(each.variance for each in weights)
    if MIN_GAIN <= gain <= MAX_GAIN:
        return
    size = "small" if gain < 1 else "large"
    fan_in = median(each.fan_in for each in weights)
    std = (gain / fan_in) ** 0.5
    yield Symptom(
        severity="info" if gain < 1 and optimizer_family(profile) != "sgd" else "warning",
        where=f"{weights[0].name} … {weights[-1].name}",
        message=f"the weights of residual branches are too {size}: they multiply the mean square of what they read by "
        f"{gain:.3g}, at a standard deviation of {std:.2g} for {fan_in:.0f} inputs",
        action=f"Initialize them with a standard deviation near {fan_in**-0.5:.2g} = 1/sqrt({fan_in:.0f}); in a "
        "Hugging Face config that is `initializer_range`.",
        evidence={"gain": gain, "std": std, "fan_in": fan_in},
    )


def _weights(profile: Profile) -> tuple[Weight, ...]:
    return profile.facts.weights if profile.facts else ()
