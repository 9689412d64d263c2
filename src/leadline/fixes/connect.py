"""The fix connect: lines to change where the graph is cut. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.tracer.cuts import remedy

CODE = """\
# between the last trainable module that gets no gradient and the loss, look for one of these and remove it:
-    h = self.encoder(x).detach()
-    with torch.no_grad():
-    h = torch.tensor(self.encoder(x))   # a copy: also .numpy(), .item(), .data
+    h = self.encoder(x)
"""
"""What to look for where the trace did not see the cut."""


@fix(name="connect", answers=("B203",), reach="advice", since="0.1.0")
def connect(context: FixContext) -> Iterator[Plan]:
    r"""Names the call that cuts the graph, with file and line.

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
        cuts = [cut for cut in context.profile.cuts if cut.how != "zero"]
        for cut in cuts:
            yield Plan(title=remedy(cut), code=f"# {remedy(cut)}.")
        if not cuts:
            yield Plan(title=f"the graph is cut after {finding.where}: remove the cut", code=CODE)
