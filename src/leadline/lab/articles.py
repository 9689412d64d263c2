"""The articles whose claims the lab tests, their errata as Markdown, and the codes of their claims."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.errors import InputError
from leadline.records import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArticle:
    """An article. The codes of its claims start with `prefix`."""

    prefix: str
    title: str
    source: str
    about: str
    wrong: str
    """What is wrong or imprecise in the article, one paragraph per point."""

    @property
    def errata(self) -> tuple[str, ...]:
        """The paragraphs of `wrong`, each on one line."""
        return tuple(" ".join(each.split()) for each in self.wrong.strip().split("\n\n"))


def experiments_of(article: SourceArticle, experiments: tuple[Experiment, ...]) -> list[Experiment]:
    return [each for each in experiments if each.code.startswith(f"{article.prefix}-")]


RESIDUALS = SourceArticle(
    prefix="S0",
    title="Why residuals? A view from DeepNet",
    source="Su Jianlin 2022, kexue.fm archives 8994 (Chinese and English)",
    about=r"""
Plain networks fail not only because gradients vanish or explode: one step changes the loss in proportion to
depth. Residual branches scaled by $1/\sqrt N$ remove this dependence and keep both passes stable.
""".strip(),
    wrong=r"""
The article calls $K$ the number of parameters per layer, with gradients of $O(1)$ each. It must be the number of
*matrices* per layer, with gradient *norms* of $O(1)$, as the companion post 8978 says (S0-6).

$1/\sqrt N$ is right for SGD only. Adam and sign steps need $1/N$, or a learning rate that falls as $N^{-1/2}$
(S0-7).

A plain network *can* make its gradients depend on depth by writing $W = N^{-1/2} W'$, which is a smaller
learning rate in disguise (S0-E3).

Deep plain networks are not *inevitably* hard: others trained thousands of layers that were orthogonal or
specially shaped. We did not rerun those; at 16 layers it is enough to tune the rate for each depth (S0-12).

A square random matrix is not close to an orthogonal one (S0-E5); it preserves the length of a vector that is
independent of it.

The number of dimensions does not decide. What decides is whether the branch's Jacobian has zero mean and whether
the blocks are independent (S0-8, S0-9). Branches that end in a ReLU, and cloned layers, explode at $1/\sqrt N$.

"$\varepsilon$ must be at least $O(1/N)$" means at most. In the Chinese text a $\partial$ is missing in
$\partial f/\partial x$, "Wamrup" is warm-up, and 觉得 stands for 矩阵 (matrix).

A large $|\Delta L|$ is a predicted *decrease* and not yet a danger. The danger is that the prediction fails:
look at the ratio of measured to predicted change (S0-1).

Xavier's $2/(n+m)$ is not "the average of the two": it is the harmonic mean of $1/n$ and $1/m$ (S0-5).
""",
)

WEIGHT_DECAY = SourceArticle(
    prefix="S2",
    title="Weight decay is useless without residual connections",
    source="Guy Dar 2023, Towards Data Science (read in Chinese)",
    about=r"""
A layer norm removes the scale of the weights before it, so a network without residual connections can shrink its
weights and keep its function: the penalty has no effect.
""".strip(),
    wrong=r"""
Scaling a weight and *its own* bias does not scale the output: all later biases must be scaled too (S2-3).

*Arbitrarily* small is false in real code: the norm's $\varepsilon$ takes over (S2-5).

*Useless* is true only for the value of the optimum, which is an infimum and is not attained. In training, weight
decay sets the effective learning rate (S2-11, S2-12).

Residual connections do not close the loophole: in a pre-norm network with a final norm, everything that writes to
the residual stream can shrink together (S2-10).

Names: $\mathrm{LN}(x + f(x))$ is *post*-norm, $x + f(\mathrm{LN}(x))$ is *pre*-norm, $x + \mathrm{LN}(f(x))$ is
a norm at the branch's output. The article calls the first pre-norm and the third post-norm. Moving the norm to
the previous layer does not make them equal (S2-8).

A layer norm divides by the standard deviation after centering, not by the norm of the vector (S2-4).

Batch norm is scale-invariant in training mode only (S2-9).
""",
)

LAYER_NORM = SourceArticle(
    prefix="S3",
    title="Residual connections and layer normalization: key techniques of the Transformer",
    source="an article in Chinese without a named author",
    about=r"""
Residual connections prevent degradation and vanishing or exploding gradients, layer norm stabilizes training, and
together they make Transformers trainable.
""".strip(),
    wrong=r"""
A layer norm computes its statistics *across the features* of one sample; the words around the formula describe a
batch norm (S3-1).

A layer norm has no "fixed statistics": it stores none and keeps no running averages (S3-2).

Residual connections without a norm or a scale double the signal with every block: they *cause* explosion (S3-4).

The code is post-norm with PyTorch's default initialization and expects the sequence dimension first. Post-norm
forgets its input and loses half of the gradient per attention layer (S3-6, S3-9).

"Internal covariate shift" is no longer an accepted explanation; scale and smoothness are.

Chapter 7 of Goodfellow's book is about regularization; optimization is chapter 8.
""",
)

GRADIENTS = SourceArticle(
    prefix="S4",
    title="Vanishing and exploding gradients: causes and remedies",
    source="a page of notes in Chinese without a named author",
    about=r"""
Gradients are products with one factor per layer. Activations, initialization, norms, residual connections,
clipping and warm-up are the remedies.
""".strip(),
    wrong=r"""
$\tanh$ is printed with the denominator $e^x - e^{-x}$; the correct one is $e^x + e^{-x}$ (S4-2).

"A factor equals the gradient of the activation" contradicts its own $f'(z)\,w$ (S4-1).

The threshold is not $|w| = 1$ but $\chi = \sigma_w^2 E[\phi'^2] = 1$ (S4-4); saturating activations are *not*
doomed: at the edge of chaos they lose no constant factor per layer.

In the backward pass a batch norm uses the standard deviation of the *batch*, not the moving one, and its Jacobian
is not $w/\sigma$ (S4-6).

Normalization does not always prevent explosion: plain stacks with batch norm explode by 1.47 per layer (S4-7).

The slope of ReLU is 1 for only half of the units, and the weight is still a factor (S4-10).

The sum in the residual identity starts at $l$, the 1 is the identity matrix, and nothing may follow the
sum; the block drawn there has a ReLU. "The sum cannot be $-1$ everywhere" is an argument about scalars: what counts is
$\prod(I + J_i)$, which can shrink a direction without any $J_i$ being $-I$ (S4-8).

Clipping each value changes the direction of the gradient; clipping its norm preserves it (S4-9). The article does
not say which one it means.

A warm-up makes the *step* small, not the gradient.

Weight regularization does not cure explosion: on scale-invariant weights it *raises* the effective learning rate
(S2-11).
""",
)

ARTICLES = (RESIDUALS, WEIGHT_DECAY, LAYER_NORM, GRADIENTS)


def code_order(code: str) -> tuple[str, bool, int, str]:
    """Return the sort key of a claim's code: S0-2 comes before S0-10, and S0-10 before S0-F."""
    article, _, number = code.partition("-")
    digits = re.sub(r"\D", "", number)
    return article, not number[:1].isdigit(), int(digits or 0), number


def find_code(text: str, codes: Sequence[str]) -> str:
    """Return the known code that `text` names, in upper or lower case."""
    known = {code.lower(): code for code in codes}
    if text.lower() in known:
        return known[text.lower()]
    nearest = difflib.get_close_matches(text.upper(), codes, n=1, cutoff=0.5)
    raise InputError(
        expected="the code of a claim, for example S0-7",
        got=repr(text),
        fix=(f"did you mean {nearest[0]}? " if nearest else "") + "`leadline lab list` shows all codes",
    )
