"""A GPT-2 built offline from its configuration: inputs as a dict, the loss taken from the model's own output.

    python examples/huggingface.py
    leadline check examples/huggingface.py:factory

Needs transformers; downloads nothing.
"""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import leadline


def factory(layers: int = 12, width: int = 64) -> leadline.Case:
    torch.manual_seed(0)
    shape = {"vocab_size": 128, "n_positions": 32, "n_embd": width, "n_layer": layers, "n_head": 4}
    config = GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(config.vocab_size, (4, config.n_positions))
    return leadline.Case(GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens})


def main() -> None:
    case = factory()
    print(leadline.check(case.model, case.inputs))


if __name__ == "__main__":
    main()
