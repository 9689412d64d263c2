"""What the check found in current releases that nobody reported there, with a test that needs no Leadline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreported:
    """One finding; `test` prints a number that shows it."""

    name: str
    package: str
    version: str
    finding: str
    what: str
    test: str
    extra: tuple[str, ...] = ()


UNREPORTED = (
    Unreported(
        name="demos.Transformer",
        package="lightning",
        version="2.6.6",
        finding="visible-answer",
        what="its language model predicts the next token from an encoder that sees all tokens, and from a decoder that "
        "is given the target of the same position. The loss falls to zero without learning the language.",
        test="""
import torch
from lightning.pytorch.demos import Transformer

torch.manual_seed(0)
model = Transformer(vocab_size=50, ninp=32, nhead=4, nhid=64, nlayers=2, dropout=0.0).eval()
tokens = torch.randint(0, 50, (1, 17))
inputs, target = tokens[:, :-1], tokens[:, 1:]
other = target.clone()
other[0, 9] = (other[0, 9] + 1) % 50  # the answer of position 9
change = (model(inputs, target) - model(inputs, other)).view(16, 50)[9].abs().max()
print(f"position 9 moves by {change:.2f} when its own answer changes")
""",
    ),
)
