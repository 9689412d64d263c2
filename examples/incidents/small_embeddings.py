"""Embeddings far below unit size make the first norm an amplifier of gradients.

**Reported.** Takase et al. 2023 (arXiv 2312.16903, "Spike no more"): loss spikes of large language models are caused
by the norm's derivative, which is one over the size of its input; embeddings of about unit size prevent them.

**Here.** Four pre-norm layers on embeddings of standard deviation 0.001, whose mean square is below the eps of the
norm after them; SGD with momentum at 0.1.

**The opposite failure.** A head tied to embeddings of unit size starts with a loss of tens of nats. Check I308
reports it (with Adam as a note), and the fix scaled-head repairs it; it is not measured here.

    python -m examples.incidents.small_embeddings
"""

from __future__ import annotations

import torch

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import LetterModel, Stack, letter_case


def build(layers: int = 4) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Stack(layers, norm_first=True), embedding_std=1e-3)
    return letter_case(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


INCIDENT = Incident(cause="W603", build=build, fix="scaled-embedding", guess=guess_a_letter())

if __name__ == "__main__":
    main(INCIDENT)
