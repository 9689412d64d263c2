"""All layers of an `nn.TransformerEncoder` start as copies of one.

**Reported.** PyTorch issues 72253, 86274 and 120396 (2022 to 2024): the encoder deep-copies the layer that it is
given, so all layers start with the same weights. This is still so in torch 2.13.

**Here.** Thirty-two pre-norm layers, Adam at 0.003. It learns, but less than with independent layers: what equal
layers add to the stream points the same way, so its mean square grows with the square of the depth.

    python -m examples.incidents.cloned_encoder_layers
"""

from __future__ import annotations

import torch
from torch import nn

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import WIDTH, LetterModel, encoder_layer, letter_case


def build(layers: int = 32) -> leadline.Case:
    torch.manual_seed(0)
    layer, norm = encoder_layer(norm_first=True), nn.LayerNorm(WIDTH)
    model = LetterModel(nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False))
    return letter_case(model, torch.optim.Adam(model.parameters(), lr=3e-3))


INCIDENT = Incident(cause="I303", build=build, fix="declone", guess=guess_a_letter())

if __name__ == "__main__":
    main(INCIDENT)
