"""Twelve post-norm layers without a warm-up never learn more than how often each letter occurs.

**Reported.** PyTorch issue 55270 (2021): `nn.TransformerEncoderLayer` is post-norm, and from about twelve layers
on, language models built from it are unstable unless initialization and rate schedule are chosen with care. Xiong et
al. 2020 (arXiv 2002.04745) prove why, and that the warm-up hides it.

**Here.** Twelve such layers of width 32, letters of a text, Adam at a rate of 0.01 from the first step on.

    python -m examples.incidents.post_norm_without_warm_up
"""

from __future__ import annotations

import torch

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import LetterModel, Stack, letter_case


def build(layers: int = 12) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Stack(layers, norm_first=False))
    return letter_case(model, torch.optim.Adam(model.parameters(), lr=1e-2))


INCIDENT = Incident(cause="R402", build=build, fix="deep-norm", guess=guess_a_letter())

if __name__ == "__main__":
    main(INCIDENT)
