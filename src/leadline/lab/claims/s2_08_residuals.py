"""S2-8 to S2-10: which norms remove which scale, in residual blocks and in evaluation mode."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.api import symmetries
from leadline.lab.claim import ClaimResults, SeededTrials, claim
from leadline.lab.claims.s2_01_equivariance import MIN_CLEAR_CHANGE, WIDTH, batch, scaled
from leadline.lab.estimate import above, below, exact, full_range
from leadline.lab.measurements import relative_change
from leadline.lab.stacks import gaussian_weight

# Derived: the eps of the norms, below the rounding error of what they divide by.
TINY_EPS = 1e-12
# Heuristic: the change of the function that this eps allows.
MAX_EPS_CHANGE = 1e-5


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), eps=0.0)


@claim(code="S2-8", verdict="holds", seeds=5, falsified_by={"factor": 1.0})
def where_the_norm_stands(trials: SeededTrials, *, factor: float = 0.1) -> ClaimResults:
    r"""$\mathrm{LN}(x + a f(x)) \ne \mathrm{LN}(x + f(x))$, but $x + \mathrm{LN}(a f(x)) = x + \mathrm{LN}(f(x))$.

    ## The article
    The section on residual connections says that they close the loophole. It calls the first form pre-norm and the
    second post-norm, and treats $x + f(\mathrm{LN}(x))$ as the first one shifted by one layer.

    ## The test
    Multiply the branch of one block of each kind by 0.1 and measure the relative change of the output.

    ## What is true
    Both formulas are right; the names are not. In standard usage $\mathrm{LN}(x + f(x))$ is *post*-norm,
    $x + f(\mathrm{LN}(x))$ is *pre*-norm, and $x + \mathrm{LN}(f(x))$ is a norm at the branch's output (res-post,
    Swin v2). The shift by one layer is wrong: in pre-norm no norm ever acts on the stream, and its blocks do change
    when their branch is scaled, as the last row shows.
    """
    forms = {
        "LN(x + f(x))": lambda x, f: norm(x + f),
        "x + LN(f(x))": lambda x, f: x + norm(f),
        "x + f(LN(x))": None,
    }

    def measure(form: str) -> float:
        x, matrix = batch(), gaussian_weight(WIDTH, WIDTH)
        make = forms[form]
        if make is None:
            inside = torch.relu(norm(x)) @ matrix
            return relative_change(x + inside, x + factor * inside)
        branch = torch.relu(x) @ matrix
        return relative_change(make(x, branch), make(x, factor * branch))

    measured = {form: full_range(trials.runs(partial(measure, form))) for form in forms}
    yield above(
        "change of LN(x + f(x))", measured["LN(x + f(x))"], MIN_CLEAR_CHANGE, origin="the article: not equal"
    )
    yield exact("change of x + LN(f(x))", measured["x + LN(f(x))"])
    yield above(
        "change of x + f(LN(x))",
        measured["x + f(LN(x))"],
        MIN_CLEAR_CHANGE,
        by="correction",
        origin="the output of the branch is not normalized",
    )


@claim(code="S2-9", verdict="holds under conditions", seeds=5, falsified_by={"mode": "train"})
def batch_norm_too(trials: SeededTrials, *, mode: str = "eval") -> ClaimResults:
    r"""Batch norm has the same invariance as layer norm.

    ## The article
    A note says: "other forms of normalization, such as BatchNorm, satisfy positive scale invariance".

    ## The test
    Multiply the weight of a linear layer before a batch norm by 0.01, in training mode and in evaluation mode.

    ## What is true
    This is true in training mode only. In evaluation mode a batch norm is a fixed affine map: its running statistics
    do not follow the weight, so the output changes. `leadline.symmetries` distinguishes the modes, and
    `leadline.shrink` rescales the statistics too.
    """

    def measure(how: str) -> float:
        net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH, eps=TINY_EPS), nn.Linear(WIDTH, 3)
        ).double()
        x = batch()
        for _ in range(50):
            net(x + 0.1 * torch.randn_like(x))
        net.train(how == "train")
        agreed = ("0.weight" in symmetries(net, x).invariant) == (how == "train")
        return relative_change(net(x), scaled(net, 1e-2, "0.weight")(x)) if agreed else float("nan")

    yield below(
        "change in training mode",
        full_range(trials.runs(lambda: measure("train"))),
        MAX_EPS_CHANGE,
        origin="the article: none",
    )
    evaluated = full_range(trials.runs(lambda: measure(mode)))
    yield below(
        "change in evaluation mode",
        evaluated,
        MAX_EPS_CHANGE,
        origin="the article: none; it does not mention the mode",
    )
    yield above(
        "the same",
        evaluated,
        MIN_CLEAR_CHANGE,
        by="correction",
        origin="the running statistics do not change",
    )


class PreNorm(nn.Module):
    """Embedding, pre-norm blocks, a final norm (or none) and a head."""

    def __init__(self, *, final: bool, blocks: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=TINY_EPS) for _ in range(blocks))
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.final = nn.LayerNorm(WIDTH, eps=TINY_EPS) if final else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for each, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(each(x))))
        y: Tensor = self.head(self.final(x))
        return y


@claim(code="S2-10", verdict="holds under conditions", seeds=3, falsified_by={"final": False})
def residuals_close_the_loophole(trials: SeededTrials, *, final: bool = True) -> ClaimResults:
    r"""(Pre-norm) residual connections break the scale invariance, so weight decay works again.

    ## The article
    This is its answer: the skip has no coefficient, so a scaled branch cannot be scaled back. It admits that "there may
    be similar properties that residual connections cannot avoid".

    ## The test
    In a pre-norm network with a final norm, multiply one branch by $10^{-3}$, then the embedding and the last layer of
    *every* branch. Compare with what `leadline.symmetries` finds.

    ## What is true
    It is true for one branch but not for the network: everything that writes to the stream can shrink together,
    because every reader, including the final norm, removes the scale. So weight decay has an exact loophole in every
    pre-norm network with a final norm, and there are more ($W_1 \to cW_1, W_2 \to W_2/c$ around a ReLU; Q against K;
    V against O). Without the final norm it disappears.
    """

    def measure() -> tuple[float, float, float]:
        net, x = PreNorm(final=final).double(), batch()
        writers = [name for name, _ in net.named_parameters() if name.startswith(("embed", "down"))]
        one, every_one = scaled(net, 1e-3, "down.1.weight", "down.1.bias"), scaled(net, 1e-3, *writers)
        missing = len(set(writers) - set(symmetries(net, x).inert))
        return relative_change(net(x), one(x)), relative_change(net(x), every_one(x)), float(missing)

    one, together, missing = (full_range(each) for each in zip(*trials.runs(measure), strict=True))
    yield above(
        "change of the output, one branch scaled",
        one,
        MIN_CLEAR_CHANGE,
        origin="the article: it is no longer invariant",
    )
    yield above(
        "change, embedding and all branches scaled",
        together,
        MIN_CLEAR_CHANGE,
        origin="the article, for the network as a whole",
    )
    yield below(
        "the same",
        together,
        MAX_EPS_CHANGE,
        by="correction",
        origin=r"derived: exact except for $\varepsilon = 10^{-12}$",
    )
    yield below(
        "how many of these `leadline.symmetries` does not find",
        missing,
        0.5,
        by="correction",
        origin="`leadline.symmetries`",
    )
