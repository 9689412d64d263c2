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
    Unreported(
        name="demos.PositionalEncoding",
        package="lightning",
        version="2.6.6",
        finding="order-blind",
        what="the repair of 19138 adds the encoding of one position, the one after the last, to all positions: a colon "
        "is missing in `self.pe[:, x.size(1)]`. So the model still does not know the order of its tokens.",
        test="""
import torch
from lightning.pytorch.demos import Transformer

torch.manual_seed(0)
model = Transformer(vocab_size=50, ninp=32, nhead=4, nhid=64, nlayers=2, dropout=0.0).eval()
added = model.pos_encoder(torch.zeros(1, 16, 32))
difference = (added - added[:, :1]).abs().max()
print(f"the encodings of 16 positions are as large as {added.abs().max():.2f} and differ by {difference:.2f}")
""",
    ),
    Unreported(
        name="gcvit_xxtiny",
        package="timm",
        version="1.0.30",
        finding="mixed-samples",
        what="the global queries are repeated in the order image 0, image 1, image 0, image 1, while the windows come "
        "in the order image 0, image 0, image 1, image 1. So windows of one image attend with the queries of another. "
        "It was reported for the code that timm took over "
        "([NVlabs/GCVit 10](https://github.com/NVlabs/GCVit/issues/10), 2022-07-07); no report to timm was found.",
        test="""
import timm
import torch

torch.manual_seed(0)
model = timm.create_model("gcvit_xxtiny", num_classes=5).eval()
images = torch.randn(2, 3, 224, 224)
other = images.clone()
other[1] = torch.randn(3, 224, 224)
with torch.no_grad():
    before, after = model(images)[0], model(other)[0]
change = (after - before).abs().max() / before.abs().max()
print(f"the scores of image 0 move by {100 * change:.0f} % when image 1 changes")
""",
    ),
)
