"""Twelve layers learn; twenty-four layers with the same recipe do not.

**Reported.** lucidrains/voicebox-pytorch issue 23 (2023): at a depth of 24 the loss did not move in 30,000
iterations; at 12 it fell to a third within a few hundred.

**Here.** A post-norm stack, Adam at a rate of 0.003: the healthy variant has twelve layers, the incident
twenty-four. The check calls the first "trains" and the second "trains poorly" before any training step.

    python -m examples.incidents.twenty_four_layers
"""

from __future__ import annotations

from functools import partial

import torch

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import LetterModel, Stack, letter_case


def build(layers: int = 24) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Stack(layers, norm_first=False))
    return letter_case(model, torch.optim.Adam(model.parameters(), lr=3e-3))


INCIDENT = Incident(
    cause="R402",
    build=build,
    fix="deep-norm",
    guess=guess_a_letter(),
    relative=partial(build, layers=12),
)

if __name__ == "__main__":
    main(INCIDENT)
