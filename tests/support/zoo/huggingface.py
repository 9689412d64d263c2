"""Hugging Face specimens: tiny configurations, built offline with random weights. Each returns its own `.loss`."""

from __future__ import annotations

import torch

from leadline import Case
from tests.support.zoo.specimen import specimen

VOCABULARY = 13
SHARED = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def tokens(length: int = 6) -> torch.Tensor:
    return torch.arange(2 * length).view(2, length) % VOCABULARY


def language(model: torch.nn.Module) -> Case:
    return Case(model.train(), {"input_ids": tokens(), "labels": tokens()})


@specimen()
def hf_gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
    )
    return language(GPT2LMHeadModel(config))


@specimen()
def hf_bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    return language(BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **SHARED)))


@specimen()
def hf_llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=16, num_key_value_heads=1, **SHARED)
    return language(LlamaForCausalLM(config))


@specimen()
def hf_t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).train()
    return Case(model, {"input_ids": tokens(6), "labels": tokens(4)})


@specimen()
def hf_vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=3, **SHARED)).train()
    return Case(model, {"pixel_values": torch.randn(2, 3, 8, 8), "labels": torch.tensor([0, 2])})
