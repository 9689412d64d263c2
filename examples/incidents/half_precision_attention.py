"""In float16 the product of queries and keys overflows before it is divided by the root of the width.

**Reported.** Many times; PyTorch issue 60939 (2021), stanford-crfm/mistral issue 67 (2021, a GPT-2 run that
crashed), ultralytics pull request 24990 (2026): the largest float16 number is 65504, the raw product exceeds it,
and softmax turns infinity into NaN.

**Here.** Four attention blocks in float16 whose queries and keys are 150 times too large, like logits that
have grown in training; SGD. One pass names the op: the matrix product before the softmax, not the loss, where a
training loop first sees the NaN.

    python -m examples.incidents.half_precision_attention
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leadline
from examples.data import guess_a_letter, letters
from examples.incidents.incident import Incident, main
from examples.incidents.letters import WIDTH, letter_case

QUERY_KEY_SCALE = 150.0


class Attention(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.qkv.weight[: 2 * WIDTH] *= QUERY_KEY_SCALE

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        split = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        # The product overflows before it is divided.
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.full_like(scores[0, 0], -torch.inf).triu(1)
        mixed = F.softmax(scores + future, dim=-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class Half(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        vocabulary = letters()[1]
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.Sequential(*(Attention() for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens)))).float()


def build(blocks: int = 4) -> leadline.Case:
    torch.manual_seed(0)
    model = Half(blocks).half()
    return letter_case(model, torch.optim.SGD(model.parameters(), lr=0.5))


INCIDENT = Incident(cause="N701", build=build, fix="critical-init", guess=guess_a_letter())

if __name__ == "__main__":
    main(INCIDENT)
