"""A training program as people write it: a small language model. Somebody forgot one argument.

    python examples/train.py --steps 200
    leadline run examples/train.py --steps 200

The loss falls quickly, and the model is useless: run it under Leadline to see why.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, LENGTH = 64, 32


class LanguageModel(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))  # the mask is missing: every position sees the next token


def batches(size: int = 16):
    """Random walks through a fixed random graph: each token has four successors."""
    successors = torch.randint(TOKENS, (TOKENS, 4))
    while True:
        walk = [torch.randint(TOKENS, (size,))]
        for _ in range(LENGTH):
            walk.append(successors[walk[-1], torch.randint(4, (size,))])
        text = torch.stack(walk, dim=1)
        yield text[:, :-1], text[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (inputs, targets) in zip(range(args.steps), batches(), strict=False):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
