"""The fix connect: lines to change where the graph is cut. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix

CODE = """\
# between the last trainable module that gets no gradient and the loss, look for one of these and remove it:
-    h = self.encoder(x).detach()
-    with torch.no_grad():
-    h = torch.tensor(self.encoder(x))   # a copy: also .numpy(), .item(), .data
+    h = self.encoder(x)
"""


@fix(name="connect", answers=("B203",), reach="advice", since="0.1.0")
def connect(context: FixContext) -> Iterator[Plan]:
    r"""Shows what usually cuts a graph, and where to look for it.

    ## What it does
    Nothing to the model: only its author can undo a `detach`, a `no_grad` or a conversion to numpy.

    ## Why it works
    Gradients stop where the graph stops.

    ## What it costs
    Nothing.

    ## When it does not help
    If the cut is intended (a target network, a frozen encoder). Then freeze its parameters, and B203 no longer fires.

    ## References
    PyTorch, "Locally disabling gradient computation".
    """
    for finding in context.findings(("B203",))[:1]:
        yield Plan(title=f"the graph is cut after {finding.where}: remove the cut", code=CODE)
