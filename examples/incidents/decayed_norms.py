"""Weight decay on the gains of norms and on biases holds a model back.

**Reported.** karpathy/minGPT issue 23 (2020): decay reached the gains of LayerNorm, because parameters were told
apart by name; BERT's own code spares them. The default of every torch optimizer is to decay all it is given.

**Here.** Four pre-norm layers, AdamW at 0.003 with a decay of 5, which takes 1.5 % of every parameter at each
step: hundreds of steps show what a usual decay does in many thousands. The rule says it as a note (W604), because
at usual rates the harm is small; so `leadline.fix` tries nothing, and the edit of the fix that answers it is made
by name.

**Not found.** Decay on embeddings, which some recipes spare too, has no rule of its own, and the repair leaves it
on.

    python -m examples.incidents.decayed_norms
"""

from __future__ import annotations

import torch

import leadline
from examples.data import guess_a_letter
from examples.incidents.letters import LetterModel, Stack, letter_case
from examples.incidents.telling import Incident, main


def build(layers: int = 4) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Stack(layers, norm_first=True))
    return letter_case(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=5.0))


INCIDENT = Incident(
    cause="W604", build=build, fix="weight-decay", guess=guess_a_letter(), steps=240, proved=False
)

if __name__ == "__main__":
    main(INCIDENT)
