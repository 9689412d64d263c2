"""Newer Hugging Face architectures: mixtures of experts, state-space models, and more encoders and vision models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.theory_builders import (
    CLASSES,
    VOCABULARY,
    Built,
    Size,
    bart_options,
    made,
    pictures,
    t5_options,
    texts,
    translations,
)


def plain_decoders(s: Size) -> dict[str, Callable[[], Built]]:
    """Decoders whose configuration takes the usual names."""
    same = [
        "Glm4ForCausalLM",
        "DiffLlamaForCausalLM",
        "SmolLM3ForCausalLM",
        "NemotronForCausalLM",
        "HeliumForCausalLM",
        "Exaone4ForCausalLM",
        "DogeForCausalLM",
        "Olmo3ForCausalLM",
        "PersimmonForCausalLM",
        "ApertusForCausalLM",
        "ArceeForCausalLM",
        "NanoChatForCausalLM",
        "Cohere2ForCausalLM",
        "SeedOssForCausalLM",
        "BitNetForCausalLM",
        "BioGptForCausalLM",
    ]
    usual = {**s.text, "head_dim": s.width // s.heads, "num_key_value_heads": s.heads // 2}
    gpt = {
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "n_embd": s.width,
        "n_layer": s.layers,
        "n_head": s.heads,
    }
    xlnet = {
        "vocab_size": VOCABULARY,
        "d_model": s.width,
        "n_layer": s.layers,
        "n_head": s.heads,
        "d_inner": 2 * s.width,
    }
    return {name: lambda name=name: texts(made(name, usual)) for name in same} | {
        "Gemma3ForCausalLM": lambda: texts(made("Gemma3ForCausalLM", usual, "Gemma3TextConfig")),
        "GPTBigCodeForCausalLM": lambda: texts(made("GPTBigCodeForCausalLM", gpt)),
        "OpenAIGPTLMHeadModel": lambda: texts(made("OpenAIGPTLMHeadModel", gpt)),
        "CTRLLMHeadModel": lambda: texts(made("CTRLLMHeadModel", {**gpt, "dff": 2 * s.width})),
        "XLNetLMHeadModel": lambda: texts(made("XLNetLMHeadModel", xlnet)),
    }


def _expert_options(s: Size) -> dict[str, Any]:
    """Four experts, of which a token reads two."""
    return {
        "head_dim": s.width // s.heads,
        "num_key_value_heads": s.heads // 2,
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": s.width,
        "shared_expert_intermediate_size": s.width,
    }


def mixtures(s: Size) -> dict[str, Callable[[], Built]]:
    """Decoders with mixtures of experts."""
    same = [
        "Qwen3MoeForCausalLM",
        "Qwen2MoeForCausalLM",
        "OlmoeForCausalLM",
        "GptOssForCausalLM",
        "GraniteMoeForCausalLM",
        "PhimoeForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "JetMoeForCausalLM",
    ]
    experts = {**s.text, **_expert_options(s)}
    latent = {
        "num_key_value_heads": s.heads,
        "kv_lora_rank": s.width // 4,
        "q_lora_rank": s.width // 2,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": s.width // s.heads,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
    without_head_dim = {name: value for name, value in experts.items() if name != "head_dim"}
    models = {name: lambda name=name: texts(made(name, experts)) for name in same}
    for name in ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"):
        models[name] = lambda name=name: texts(made(name, {**without_head_dim, **latent}))
    return models


def recurrences(s: Size) -> dict[str, Callable[[], Built]]:
    """State-space models, linear attention, and hybrids of them with attention."""
    states = {
        "vocab_size": VOCABULARY,
        "hidden_size": s.width,
        "num_hidden_layers": s.layers,
        "state_size": 8,
    }
    experts = {**s.text, **_expert_options(s)}
    usual = {**s.text, "head_dim": s.width // s.heads, "num_key_value_heads": s.heads // 2}
    mamba = {
        "mamba_n_heads": 2 * s.heads,
        "mamba_d_head": s.width // s.heads,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
        "mamba_expand": 2,
    }
    options: dict[str, dict[str, Any]] = {
        "Mamba2ForCausalLM": {
            **states,
            "head_dim": s.width // s.heads,
            "num_heads": 2 * s.heads,
            "n_groups": 1,
            "chunk_size": 16,
        },
        "FalconMambaForCausalLM": states,
        "JambaForCausalLM": {
            **experts,
            "mamba_d_state": 8,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        "BambaForCausalLM": {**usual, **mamba, "attn_layer_indices": [1]},
        "FalconH1ForCausalLM": {**usual, **mamba, "mamba_d_ssm": 2 * s.width},
        "GraniteMoeHybridForCausalLM": {
            **experts,
            **mamba,
            "layer_types": ["mamba", "attention"],
            "shared_intermediate_size": s.width,
        },
        "Qwen3NextForCausalLM": {
            **experts,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": s.heads,
            "linear_num_key_heads": s.heads // 2,
            "linear_key_head_dim": s.width // s.heads,
            "linear_value_head_dim": s.width // s.heads,
        },
        "MiniMaxForCausalLM": experts,
        "RecurrentGemmaForCausalLM": {
            **usual,
            "block_types": ["recurrent", "attention"],
            "lru_width": s.width,
            "attention_window_size": 64,
        },
        "RwkvForCausalLM": {
            "vocab_size": VOCABULARY,
            "hidden_size": s.width,
            "num_hidden_layers": s.layers,
            "context_length": 64,
        },
        "Lfm2ForCausalLM": {**usual, "layer_types": ["conv", "full_attention"]},
    }
    return {name: lambda name=name: texts(made(name, options[name])) for name in options}


def more_encoders(s: Size) -> dict[str, Callable[[], Built]]:
    same = [
        "DebertaV2ForMaskedLM",
        "MegatronBertForMaskedLM",
        "RemBertForMaskedLM",
        "NomicBertForMaskedLM",
        "EuroBertForMaskedLM",
        "RobertaPreLayerNormForMaskedLM",
        "BigBirdForMaskedLM",
    ]
    options: dict[str, dict[str, Any]] = dict.fromkeys(same, s.text) | {  # type: ignore[assignment]
        "EsmForMaskedLM": {**s.text, "mask_token_id": 3},
        "SqueezeBertForMaskedLM": {**s.text, "embedding_size": s.width},
        "LongformerForMaskedLM": {**s.text, "attention_window": 8},
    }
    return {name: lambda name=name: texts(made(name, options[name])) for name in options}


def more_pairs(s: Size) -> dict[str, Callable[[], Built]]:
    bart = bart_options(s)
    t5 = t5_options(s)
    experts = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    prophet = {
        "vocab_size": VOCABULARY,
        "hidden_size": s.width,
        "encoder_ffn_dim": 2 * s.width,
        "decoder_ffn_dim": 2 * s.width,
        "num_encoder_layers": s.layers,
        "num_decoder_layers": s.layers,
        "num_encoder_attention_heads": s.heads,
        "num_decoder_attention_heads": s.heads,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 2,
    }
    options: dict[str, dict[str, Any]] = {
        "MT5ForConditionalGeneration": t5,
        "UMT5ForConditionalGeneration": t5,
        "LongT5ForConditionalGeneration": t5,
        "SwitchTransformersForConditionalGeneration": {**t5, **experts},
        "BlenderbotForConditionalGeneration": bart,
        "PLBartForConditionalGeneration": bart,
        "BigBirdPegasusForConditionalGeneration": bart,
        "ProphetNetForConditionalGeneration": prophet,
    }
    return {name: lambda name=name: translations(made(name, options[name])) for name in options}


def more_vision(s: Size) -> dict[str, Callable[[], Built]]:
    grid = {**s.hidden, "image_size": 32, "patch_size": 4}
    stages = [s.width // 2, s.width, s.width, 2 * s.width]
    pyramid = {"hidden_sizes": stages, "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
    small = dict.fromkeys(("Data2VecVision", "Dinov2WithRegisters", "IJepa", "ViTMSN"), grid)
    small |= {name: {"vision_config": grid} for name in ("Siglip", "CLIP")}  # type: ignore[dict-item]
    large: dict[str, dict[str, Any]] = {
        "ConvNextV2": {"hidden_sizes": stages, "depths": [1, 1, 1, 1]},
        "Pvt": {"image_size": 64, **pyramid},
        "PvtV2": {"image_size": 64, **pyramid},
        "Segformer": pyramid,
        "Swinv2": {
            "image_size": 64,
            "embed_dim": s.width // 2,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        "MobileNetV1": {"image_size": 64},
        "MobileViT": {"image_size": 64, "hidden_sizes": [32, 48, 64]},
        "Levit": {"image_size": 64, "hidden_sizes": [64, 96, 128], "depths": [1, 1, 1]},
        "FocalNet": {
            "image_size": 64,
            "embed_dim": s.width // 2,
            "depths": [1, 1],
            "hidden_sizes": [s.width // 2, s.width],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        "Hiera": {
            "image_size": [64, 64],
            "embed_dim": s.width // 2,
            "depths": [1, 1, 1],
            "num_heads": [1, 2, 4],
            "num_query_pool": 2,
            "masked_unit_size": [4, 4],
        },
    }
    models: dict[str, Callable[[], Built]] = {}
    for side, families in ((32, small), (64, large)):
        for family, options in families.items():
            name = f"{family}ForImageClassification"
            settings = {**options, "num_labels": CLASSES}
            models[name] = lambda name=name, settings=settings, side=side: pictures(
                made(name, settings), side
            )
    return models
