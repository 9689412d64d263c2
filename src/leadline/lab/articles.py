"""The articles whose claims are tested, and what is wrong or loose in each, as Markdown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.errors import InputError
from leadline.records import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArticle:
    """One article: its claims have codes that begin with `prefix`."""

    prefix: str
    title: str
    source: str
    about: str
    wrong: str
    """What is wrong or loose in it: a paragraph each."""

    @property
    def errata(self) -> tuple[str, ...]:
        return tuple(" ".join(each.split()) for each in self.wrong.strip().split("\n\n"))


def experiments_of(article: SourceArticle, experiments: tuple[Experiment, ...]) -> list[Experiment]:
    return [each for each in experiments if each.code.startswith(f"{article.prefix}-")]


RESIDUALS = SourceArticle(
    prefix="S0",
    title="Why residuals? A view from DeepNet",
    source="Su Jianlin 2022, kexue.fm archives 8994 (Chinese and English)",
    about=r"""
Plain networks fail not only by vanishing or exploding gradients: one step changes the loss in proportion to
depth. Residual branches of $1/\sqrt N$ take that out and keep both passes stable.
""".strip(),
    wrong=r"""
$K$ is called the number of parameters a layer, with gradients of $O(1)$ each. It must be the number of
*matrices* a layer, with gradient *norms* of $O(1)$, as the companion post 8978 has it (S0-6).

$1/\sqrt N$ is right for SGD alone. Adam and sign steps need $1/N$, or a rate that falls as $N^{-1/2}$ (S0-7).

A plain network *can* make its gradients depend on depth, by writing $W = N^{-1/2} W'$: a smaller rate in
disguise (S0-E3).

Deep plain networks are not *inevitably* hard: with orthogonal or specially shaped layers others trained
thousands of them. We did not rerun those; at 16 layers a rate for each depth is enough (S0-12).

A square random matrix is not close to an orthogonal one (S0-E5); it keeps the length of a vector that is
independent of it.

One dimension against many is not the dividing line: zero mean of the branch's Jacobian and independence between
blocks are (S0-8, S0-9). Branches that end in a ReLU, and cloned layers, explode at $1/\sqrt N$.

"$\varepsilon$ must be at least $O(1/N)$" means at most. In the Chinese text a $\partial$ is missing in
$\partial f/\partial x$, "Wamrup" is warm-up, and 觉得 stands for 矩阵 (matrix).

A large $|\Delta L|$ is a predicted *decrease*, not yet a danger. The danger is that the promise is not kept:
look at measured over promised (S0-1).

"Average of the two" for Xavier's $2/(n+m)$: it is the harmonic mean of $1/n$ and $1/m$ (S0-5).
""",
)

WEIGHT_DECAY = SourceArticle(
    prefix="S2",
    title="Weight decay is useless without residual connections",
    source="Guy Dar 2023, Towards Data Science (read in Chinese)",
    about=r"""
Behind a layer norm the scale of weights is free, so that a network without residual connections can shrink its
weights and keep its function: the penalty is void.
""".strip(),
    wrong=r"""
Scaling a weight and *its own* bias does not scale the output: all later biases must follow (S2-3).

*Arbitrarily* small is false in real code: the norm's $\varepsilon$ takes over (S2-5).

*Useless* holds for the value of the optimum only, which is an infimum and not attained. In training, decay sets
the effective rate (S2-11, S2-12).

Residual connections do not close the loophole: everything that writes to the stream of a pre-norm network with
a final norm can shrink together (S2-10).

Names: $\mathrm{LN}(x + f(x))$ is *post*-norm, $x + f(\mathrm{LN}(x))$ is *pre*-norm, $x + \mathrm{LN}(f(x))$ is
a norm at the branch's output. The article calls the first pre-norm and the third post-norm; moving the norm to
the layer before does not make them the same (S2-8).

A layer norm divides by the standard deviation after centring, not by the norm of the vector (S2-4).

Batch norm has the invariance in training mode only (S2-9).
""",
)

LAYER_NORM = SourceArticle(
    prefix="S3",
    title="Residual connections and layer normalisation: key techniques of the Transformer",
    source="an article in Chinese without a named author",
    about=r"""
Residual connections cure degradation and vanishing or exploding gradients; layer norm stabilises; together they
make Transformers train.
""".strip(),
    wrong=r"""
The statistics of a layer norm are those of one sample *across its features*; the formula's words describe a
batch norm (S3-1).

A layer norm has no "fixed statistics", neither stored nor running (S3-2).

Residual connections without a norm or a scale double the signal a block: they *cause* explosion (S3-4).

The code is post-norm with PyTorch's default initialisation and takes sequences first; post-norm forgets its
input and loses half of the gradient an attention layer (S3-6, S3-9).

"Internal covariate shift" is no accepted explanation any more; speak of scale and smoothness instead.

Chapter 7 of Goodfellow's book is regularisation; optimisation is chapter 8.
""",
)

GRADIENTS = SourceArticle(
    prefix="S4",
    title="Vanishing and exploding gradients: causes and remedies",
    source="a page of notes in Chinese without a named author",
    about=r"""
Gradients are products, one factor a layer; activations, initialisation, norms, residual connections, clipping
and warm-up as remedies.
""".strip(),
    wrong=r"""
$\tanh$ is printed with the denominator $e^x - e^{-x}$; it is $e^x + e^{-x}$ (S4-2).

"A factor equals the gradient of the activation" contradicts its own $f'(z)\,w$ (S4-1).

The threshold is not $|w| = 1$ but $\chi = \sigma_w^2 E[\phi'^2] = 1$ (S4-4); saturating activations are *not*
doomed, at the edge of chaos they lose no factor a layer.

A batch norm uses the sigma of the *batch* on the way back, not the moving one, and its Jacobian is not
$w/\sigma$ (S4-6).

Normalisation does not always prevent explosion: plain stacks with batch norm explode by 1.47 a layer (S4-7).

The slope of ReLU is 1 on half of the units only, and the weight is still a factor (S4-10).

The sum in the residual identity starts at $l$, the 1 is the identity matrix, and nothing may stand behind the
sum; the block drawn there has a ReLU. "The sum cannot be $-1$ everywhere" is an argument about numbers: what counts is
$\prod(I + J_i)$, which can shrink a direction without any $J_i$ being $-I$ (S4-8).

Clipping each value bends the gradient; clipping its norm keeps the direction (S4-9). The article does not say which.

A warm-up makes the *step* small, not the gradient.

Weight regularisation as a cure for explosion: on scale-invariant weights it *raises* the effective rate
(S2-11).
""",
)

ARTICLES = (RESIDUALS, WEIGHT_DECAY, LAYER_NORM, GRADIENTS)


def code_order(code: str) -> tuple[str, bool, int, str]:
    """S0-2 before S0-10 before S0-F."""
    article, _, number = code.partition("-")
    digits = re.sub(r"\D", "", number)
    return article, not number[:1].isdigit(), int(digits or 0), number


def find_code(asked: str, codes: Sequence[str]) -> str:
    """The code that was meant, in any case of letters."""
    known = {code.lower(): code for code in codes}
    if asked.lower() in known:
        return known[asked.lower()]
    near = difflib.get_close_matches(asked.upper(), codes, n=1, cutoff=0.5)
    raise InputError(
        expected="the code of a claim, for instance S0-7",
        got=repr(asked),
        fix=(f"did you mean {near[0]}? " if near else "") + "`leadline lab list` lists them",
    )
