"""connect: lines to change where the graph is cut, or numbers leave their type's range. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix

DETACHED = """\
# look between the last trainable module that gets no gradient and the loss for one of these, and remove it:
-    h = self.encoder(x).detach()
-    with torch.no_grad():
-    h = torch.tensor(self.encoder(x))   # a copy: also .numpy(), .item(), .data
+    h = self.encoder(x)
"""
SCALED = """\
# half precision needs the loss scaled up before the backward pass:
+scaler = torch.amp.GradScaler()
-loss.backward(); optimizer.step()
+scaler.scale(loss).backward()
+scaler.step(optimizer); scaler.update()
# or bfloat16, whose range is that of float32:
+with torch.autocast(x.device.type, dtype=torch.bfloat16):
loss = loss_fn(model(x), y)
"""


@fix(name="connect", answers=("B203",), reach="advice", since="0.2")
def connect(patient: Patient) -> Iterator[Plan]:
    r"""Shows what usually cuts a graph, and where to look for it.

    ## What it does
    Nothing to the model: only its author can undo a `detach`, a `no_grad` or a detour through numpy.

    ## Why it works
    Gradients stop where the graph does.

    ## What it costs
    Nothing.

    ## When it does not help
    If the cut is meant (a target network, a frozen encoder): then freeze its parameters, and B203 is silent.

    ## References
    PyTorch, "Locally disabling gradient computation".
    """
    for finding in patient.findings(("B203",))[:1]:
        yield Plan(title=f"the graph is cut behind {finding.where}: remove the cut", code=DETACHED)


@fix(name="loss-scale", answers=("N702", "N703", "N705"), reach="advice", since="0.2")
def loss_scale(patient: Patient) -> Iterator[Plan]:
    r"""Shows how to keep gradients inside the range of their type.

    ## What it does
    Nothing to the model: loss scaling belongs to the training loop.

    ## Why it works
    The smallest float16 is 6e-8. Scaling the loss by a power of two shifts all gradients into its range and is
    divided out again before the step; bfloat16 has float32's range at fewer digits.

    ## What it costs
    A step that overflows is skipped. bfloat16 has eight bits of precision.

    ## When it does not help
    If gradients vanish with depth in float32 too, scaling moves all of them alike: repair the depth first.

    ## References
    Micikevicius et al., arXiv 1710.03740, section 3.2.
    """
    precision = patient.profile.facts.precision if patient.profile.facts else None
    if precision is not None and precision.dtype in ("float16", "bfloat16"):
        yield Plan(title=f"loss scaling, or another type than {precision.dtype}", code=SCALED)
