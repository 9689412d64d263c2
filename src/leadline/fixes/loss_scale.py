"""The fix loss-scale: lines to change where gradients leave the range of their type. Advice only."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix

CODE = """\
# half precision needs the loss scaled up before the backward pass:
+scaler = torch.amp.GradScaler()
-loss.backward(); optimizer.step()
+scaler.scale(loss).backward()
+scaler.step(optimizer); scaler.update()
# or bfloat16, whose range is that of float32:
+with torch.autocast(x.device.type, dtype=torch.bfloat16):
loss = loss_fn(model(x), y)
"""


@fix(name="loss-scale", answers=("N702", "N703", "N705"), reach="advice", since="0.1.0")
def loss_scale(context: FixContext) -> Iterator[Plan]:
    r"""Shows how to keep gradients inside the range of their type.

    ## What it does
    Nothing to the model: loss scaling belongs to the training loop.

    ## Why it works
    The smallest positive float16 is 6e-8. Scaling the loss by a power of two shifts all gradients into the range of the
    type; the factor is divided out before the step. bfloat16 has the range of float32 with fewer digits.

    ## What it costs
    A step that overflows is skipped. bfloat16 has eight bits of precision.

    ## When it does not help
    If gradients also vanish with depth in float32. Scaling multiplies all of them alike: repair the depth first.

    ## References
    Micikevicius et al., arXiv 1710.03740, section 3.2.
    """
    precision = context.profile.facts.precision if context.profile.facts else None
    if precision is not None and precision.dtype in ("float16", "bfloat16"):
        yield Plan(title=f"loss scaling, or a different type than {precision.dtype}", code=CODE)
