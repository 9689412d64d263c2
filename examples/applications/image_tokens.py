"""Vision: a Transformer that reads handwritten digits as sixteen patches; twelve post-norm layers, no warm-up.

A norm after every sum halves the input's part of the stream and the gradient before attention; without a warm-up
the first steps of Adam are as large as any other. The repair moves the norms into the branches.

    python -m examples.applications.image_tokens [--quick]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.applications.application import Application, main
from examples.applications.digits import accuracy, batches

WIDTH = 32


class VisionTransformer(nn.Module):
    """Patches of 2 x 2 pixels, learned positions, and the mean over all tokens as the answer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(16, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def build(layers: int = 12) -> leadline.Case:
    torch.manual_seed(0)
    model = VisionTransformer(layers)
    data = batches(200)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return leadline.Case(model, *data[0], F.cross_entropy, optimizer, data)


APPLICATION = Application(build=build, score=accuracy, unit="accuracy on held-out images", fix="pre-norm")

if __name__ == "__main__":
    main(APPLICATION)
