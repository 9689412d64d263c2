"""DeepNorm with its alpha on the branch does the opposite of DeepNorm.

**Reported.** labmlai/annotated_deep_learning_paper_implementations issue 145 (2022): a widely read implementation
multiplied the branch, not the skip, by alpha. DeepNorm is LN(alpha x + f(x)): alpha makes a block preserve its
input. On the branch, alpha makes each block forget it.

**Here.** Twelve layers with Xavier weights and alpha = 24^(1/4) = 2.21 on the wrong side, Adam at 0.003. The check
reports a note, next to the warning about post-norm at that depth. The repair removes the wrong factor and adds the
right one.

    python -m examples.incidents.deepnorm_on_the_branch
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import leadline
from examples.data import guess_a_letter
from examples.incidents.incident import Incident, main
from examples.incidents.letters import WIDTH, LetterModel, letter_case


class Layer(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.xavier_normal_(parameter)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm1(x + self.alpha * attended)  # should be alpha * x + attended
        return self.norm2(x + self.alpha * self.feed_forward(x))


class Layers(nn.ModuleList):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self:
            x = layer(x, mask)
        return x


def build(layers: int = 12) -> leadline.Case:
    torch.manual_seed(0)
    model = LetterModel(Layers([Layer((2 * layers) ** 0.25) for _ in range(layers)]))
    return letter_case(model, torch.optim.Adam(model.parameters(), lr=3e-3))


INCIDENT = Incident(cause="I305", build=build, fix="deep-norm", guess=guess_a_letter())

if __name__ == "__main__":
    main(INCIDENT)
