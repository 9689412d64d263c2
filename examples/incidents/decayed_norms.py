"""Weight decay on the gains of norms and on biases slows a model down.

**Reported.** karpathy/minGPT issue 23 (2020): decay was applied to the gains of LayerNorm, because parameters were
selected by name; BERT's own code excludes them. By default every torch optimizer decays all its parameters.

**Here.** Four pre-norm layers, AdamW at 0.003 with a decay of 5, which removes 1.5 % of every parameter at each
step: hundreds of steps then show what a usual decay does in many thousands. The check reports a note (W604), because
at usual rates the harm is small. `leadline.fix` does not act on notes, so the fix is applied by name here.

**Not found.** Decay on embeddings, which some recipes exclude too, has no check, and the repair keeps it.

    python -m examples.incidents.decayed_norms
"""

from __future__ import annotations

import torch

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import LetterModel, Stack, letter_case


def build(layers: int = 4) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Stack(layers, norm_first=True))
    return letter_case(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=5.0))


INCIDENT = Incident(
    cause="W604", build=build, fix="weight-decay", guess=guess_a_letter(), steps=240, proved=False
)

if __name__ == "__main__":
    main(INCIDENT)
