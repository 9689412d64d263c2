"""The fix log-probabilities: nll_loss gets what it expects."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import returns_shape
from leadline.records import Edit


@fix(name="log-probabilities", answers=("D910",), reach="architecture", since="0.1.0")
def log_probabilities(context: FixContext) -> Iterator[Plan]:
    r"""Applies `log_softmax` to logits before `nll_loss`.

    ## What it does
    The model returns `output.log_softmax(1)`. `F.cross_entropy` on the logits is the same.

    ## Why it works
    `nll_loss` only picks the score of the target. On logits it falls without bound, because nothing holds the scores
    together; a lower loss proves nothing there. The proof is that the probe is silent and that the training falls below
    the loss of the best constant output.

    ## What it costs
    The output of the model becomes log-probabilities.

    ## When it does not help
    If the scores are probabilities already: then take their softmax away and use `F.cross_entropy`.

    ## References
    PyTorch, `torch.nn.NLLLoss`.
    """
    question = context.profile.question
    if question is None or not context.findings(("D910",)):
        return
    is_logits = question.scores == "logits" and question.scores_loss == "nll_loss"
    if is_logits and len(question.predictions) > 1 and returns_shape(context, question.predictions):
        edit = Edit(action="log-softmax", options={"dim": 1})
        yield Plan(
            title="log_softmax over the classes before nll_loss",
            edits=(edit,),
            promise=1.0,
            changes_loss=True,
        )
