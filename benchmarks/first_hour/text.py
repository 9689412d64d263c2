"""Real text that every machine has: the documentation topics that come with Python, as characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import torch
from torch import Tensor

VOCABULARY = 64
CONTEXT = 32
BATCH = 8
HELD_OUT_SEQUENCES = 128
# Heuristic: the last tenth of the text is never trained on.
HELD_OUT_SHARE = 0.1

Batch = tuple[Tensor, Tensor]
"""Characters, and for each the next one: two tensors of batch x context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text as indices of its most common characters; all others share the last index."""

    train: Tensor
    held_out: Tensor

    def batch(self, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(self.train) - CONTEXT, (BATCH,), generator=generator)
        return _windows(self.train, starts)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Yield fresh training batches without end."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self.batch(generator)

    def held_out_batch(self) -> Batch:
        starts = torch.linspace(0, len(self.held_out) - CONTEXT - 1, HELD_OUT_SEQUENCES).long()
        return _windows(self.held_out, starts)

    def unigram_loss(self) -> float:
        """Return the held-out loss of the best constant prediction: the frequencies of characters in training."""
        counts = torch.bincount(self.train, minlength=VOCABULARY).double() + 1
        log_frequencies = (counts / counts.sum()).log()
        return -log_frequencies[self.held_out_batch()[1]].mean().item()


@cache
def corpus() -> Corpus:
    text = "\n".join(topics[name] for name in sorted(topics))
    common = [character for character, _ in Counter(text).most_common(VOCABULARY - 1)]
    index = {character: number for number, character in enumerate(common)}
    codes = torch.tensor([index.get(character, VOCABULARY - 1) for character in text])
    split = int(len(codes) * (1 - HELD_OUT_SHARE))
    return Corpus(train=codes[:split], held_out=codes[split:])


def _windows(codes: Tensor, starts: Tensor) -> Batch:
    windows = torch.stack([codes[start : start + CONTEXT + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
