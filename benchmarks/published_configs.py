"""Check published models from their dimensions, without weights, and find reports that contradict themselves.

    python -m benchmarks.published_configs            check models without a result, fill docs/explanation/weightless.md
    python -m benchmarks.published_configs NAME ...   check these models and store nothing

The dimensions are those of the published config.json files. Time is processor time of prediction and report in one
process. Results: benchmarks/results/published_configs.json.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table

Config = dict[str, Any]


def decoder(  # noqa: PLR0913  (the sizes that make a decoder)
    kind: str, width: int, layers: int, heads: int, groups: int, hidden: int, vocabulary: int
) -> Config:
    """Return the config of a decoder in the words that most of them share; `groups` are heads of keys and values."""
    return {
        "model_type": kind,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
    }


def encoder(kind: str, width: int, layers: int, heads: int, hidden: int, **more: Any) -> Config:
    """Return the config of an encoder of text or images."""
    return {
        "model_type": kind,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
        **more,
    }


DEEPSEEK_V3 = {
    **decoder("deepseek_v3", 7168, 61, 128, 128, 18432, 129280),
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
MIXTRAL = {
    **decoder("mixtral", 4096, 32, 32, 8, 14336, 32000),
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = {
    **decoder("qwen3_moe", 2048, 48, 32, 4, 6144, 151936),
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
GPT_OSS = {
    **decoder("gpt_oss", 2880, 24, 64, 8, 2880, 201088),
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
}
T5 = {"model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
BART = {
    "model_type": "bart",
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "vocab_size": 50265,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "num_mel_bins": 80,
}

PUBLISHED: dict[str, Config] = {
    "Llama-3 8B": decoder("llama", 4096, 32, 32, 8, 14336, 128256),
    "Llama-3 70B": decoder("llama", 8192, 80, 64, 8, 28672, 128256),
    "Mistral 7B": decoder("mistral", 4096, 32, 32, 8, 14336, 32000),
    "Mixtral 8x7B": MIXTRAL,
    "Qwen2.5 7B": decoder("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "Qwen3 8B": {**decoder("qwen3", 4096, 36, 32, 8, 12288, 151936), "head_dim": 128},
    "Qwen3 30B-A3B": QWEN3_MOE,
    "DeepSeek-V3": DEEPSEEK_V3,
    "gpt-oss 20B": GPT_OSS,
    "Gemma 7B": {**decoder("gemma", 3072, 28, 16, 16, 24576, 256000), "head_dim": 256},
    "Gemma-2 9B": {**decoder("gemma2", 3584, 42, 16, 8, 14336, 256000), "head_dim": 256},
    "Gemma-3 1B": {**decoder("gemma3_text", 1152, 26, 4, 1, 6912, 262144), "head_dim": 256},
    "Phi-2": {**decoder("phi", 2560, 32, 32, 32, 10240, 51200), "partial_rotary_factor": 0.4},
    "Phi-3 mini": decoder("phi3", 3072, 32, 32, 32, 8192, 32064),
    "OLMo-2 7B": decoder("olmo2", 4096, 32, 32, 32, 11008, 100352),
    "Granite-3 8B": decoder("granite", 4096, 40, 32, 8, 12800, 49155),
    "StableLM-2 1.6B": decoder("stablelm", 2048, 24, 32, 32, 5632, 100352),
    "Falcon 7B": {
        "model_type": "falcon",
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
    },
    "GPT-2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12},
    "GPT-2 XL": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "GPT-NeoX 20B": {**encoder("gpt_neox", 6144, 44, 64, 24576), "vocab_size": 50432},
    "Pythia 1.4B": {**encoder("gpt_neox", 2048, 24, 16, 8192), "vocab_size": 50304},
    "OPT 1.3B": {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "ffn_dim": 8192},
    "BLOOM 560M": {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16},
    "Mamba 130M": {"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280},
    "BERT base": encoder("bert", 768, 12, 12, 3072),
    "BERT large": encoder("bert", 1024, 24, 16, 4096),
    "RoBERTa base": encoder("roberta", 768, 12, 12, 3072, vocab_size=50265),
    "ModernBERT base": encoder("modernbert", 768, 22, 12, 1152, vocab_size=50368),
    "ALBERT base": encoder("albert", 768, 12, 12, 3072, embedding_size=128),
    "T5 base": T5,
    "BART large": BART,
    "Whisper base": WHISPER,
    "ViT-B/16": encoder("vit", 768, 12, 12, 3072),
    "ViT-L/16": encoder("vit", 1024, 24, 16, 4096),
    "DINOv2-B/14": {
        "model_type": "dinov2",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "ResNet-50": {"model_type": "resnet"},
}


def measure(name: str) -> dict[str, Any]:
    """Check one model and return its verdict, what is known about it, and what contradicts itself."""
    import leadline
    from leadline.errors import InputError

    begun = time.process_time()
    try:
        report = leadline.predict(PUBLISHED[name])
    except InputError as error:
        return {"verdict": "refused", "why": " ".join(str(error).split()), "contradictions": []}
    blocks = report.profile.blocks
    return {
        "verdict": report.verdict,
        "findings": [f"{each.code} {each.severity}" for each in report.findings],
        "parameters": report.profile.parameters,
        "blocks": len(blocks),
        "predicted": sum(each.backward_ms_predicted is not None for each in blocks),
        "seconds": round(time.process_time() - begun, 1),
        "contradictions": list(contradictions(report)),
    }


def contradictions(report: Any) -> Iterator[str]:
    """Yield the statements of a report that cannot both be true."""
    page = " ".join(str(report).split())
    depth = re.search(r"trainable to about (\d+) block", page)
    if depth and report.verdict == "trains" and int(depth[1]) < len(report.profile.blocks):
        yield f"trains, but only to {depth[1]} of {len(report.profile.blocks)} blocks"
    if "values measured" in page and "every number is predicted" in page:
        yield "values were measured, but every number is predicted"
    if report.verdict == "trains" and any(each.severity != "info" for each in report.findings):
        yield "trains with findings that say otherwise"
    if report.verdict == "trains" and re.search(r"gradient's power grows by a factor of \S+ per block", page):
        yield "trains, but its gradient explodes"


def render(results: Results) -> str:
    """Return the table of docs/explanation/weightless.md."""
    rows = [
        [
            name,
            f"{found['parameters']:.3g}" if "parameters" in found else "",
            found["verdict"],
            ", ".join(found.get("findings", ())),
            f"{found['predicted']} of {found['blocks']}" if "blocks" in found else "",
            f"{found['seconds']} s" if "seconds" in found else "",
        ]
        for name, found in results["cases"].items()
    ]
    header = ["model", "parameters", "verdict", "findings", "blocks predicted", "processor time"]
    wrong = sum(bool(found["contradictions"]) for found in results["cases"].values())
    return f"{len(rows)} models; reports that contradict themselves: {wrong}.\n\n{table(header, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models to check now; nothing is stored")
    chosen = parser.parse_args().names
    for name in chosen:
        print(name, measure(name), flush=True)
    if chosen:
        return
    results = run_missing("published_configs", {name: partial(measure, name) for name in PUBLISHED}, print)
    fill_file(ROOT / "docs" / "explanation" / "weightless.md", "published configs", render(results))


if __name__ == "__main__":
    main()
