"""Published models with wiring bugs that their own developers found and fixed: named in one version, silent in a later.

    pip install --no-deps --target DIR/5.12.0 transformers==5.12.0 "huggingface_hub<2" "tokenizers<=0.23.0" httpx ...
    pip install --no-deps --target DIR/4.51.3 transformers==4.51.3 "huggingface_hub<1" "tokenizers<0.22"
    python -m benchmarks.wiring known --packages DIR

Each version runs in processes of its own, one per model, with its folder first on the path. The installed version runs
too. Models are tiny (two layers, width 32) and get labels, as their documentation asks for.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.result_files import ROOT
from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.readings.wiring.memory import Rebuild

INSTALLED = "installed"
VOCABULARY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBug:
    """One class of transformers, the finding that names its bug, and the versions that have it."""

    model: str
    expected: str
    versions: tuple[str, ...]
    build: Callable[[], Case]
    issue: str = ""


def text_case(prefix: str, **fields: Any) -> Case:
    """A causal language model with its inputs as labels."""
    transformers = importlib.import_module("transformers")
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **fields})
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    ids = torch.randint(3, VOCABULARY, (3, 16))
    return Case(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()})


def moonshine() -> Case:
    transformers = importlib.import_module("transformers")
    config = transformers.MoonshineConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.MoonshineForConditionalGeneration(config)
    labels = torch.randint(3, VOCABULARY, (3, 14))
    return Case(model, {"input_values": torch.randn(3, 2000), "labels": labels})


def git() -> Case:
    transformers = importlib.import_module("transformers")
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.GitConfig(**SIZES, vision_config={**vision, "image_size": 32, "patch_size": 16})
    model = transformers.GitForCausalLM(config)
    ids = torch.randint(3, VOCABULARY, (3, 16))
    images = torch.randn(3, 3, 32, 32)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    return Case(model, {**inputs, "pixel_values": images})


def llama4() -> Case:
    """Two layers, the second with experts; only the text model."""
    transformers = importlib.import_module("transformers")
    config = transformers.Llama4TextConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size_mlp=64,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        attention_chunk_size=32,
        use_cache=False,
    )
    model = transformers.Llama4ForCausalLM(config)
    ids = torch.randint(3, VOCABULARY, (3, 16))
    return Case(model, {"input_ids": ids, "labels": ids.clone()})


def _text(model: str, expected: str, versions: tuple[str, ...], issue: str, **fields: Any) -> KnownBug:
    return KnownBug(
        model=f"{model}ForCausalLM",
        expected=expected,
        versions=versions,
        issue=issue,
        build=lambda: text_case(model, **fields),
    )


OLD, OLDER = "5.12.0", "4.51.3"
ENCODERS = "huggingface/transformers#48745"
DOGE = "huggingface/transformers#48748"
KNOWN = {
    bug.model: bug
    for bug in (
        _text("RoFormer", "visible-answer", (OLD,), ENCODERS, is_decoder=True),
        _text("BigBird", "visible-answer", (OLD,), ENCODERS, is_decoder=True, attention_type="original_full"),
        _text(
            "RemBert",
            "visible-answer",
            (OLD,),
            ENCODERS,
            is_decoder=True,
            input_embedding_size=32,
            output_embedding_size=32,
        ),
        _text("MegatronBert", "visible-answer", (OLD,), ENCODERS, is_decoder=True),
        _text("Doge", "visible-answer", (OLD,), DOGE, num_key_value_heads=4, keep_window_size=2048),
        KnownBug(
            model="MoonshineForConditionalGeneration",
            expected="shifted-targets",
            versions=(OLD, OLDER),
            build=moonshine,
            issue="huggingface/transformers#46784",
        ),
        KnownBug(
            model="GitForCausalLM",
            expected="shifted-targets",
            versions=(OLD, OLDER),
            build=git,
            issue="huggingface/transformers#47394",
        ),
        KnownBug(model="Llama4ForCausalLM", expected="uninitialized-memory", versions=(OLDER,), build=llama4),
        _text(
            "JetMoe",
            "shifted-targets",
            (OLDER,),
            "",
            num_key_value_heads=2,
            kv_channels=8,
            num_local_experts=4,
        ),
    )
}


def run_jobs(folder: Path, only: str, stored: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Check every model in every version in which its bug is known, and as installed; what is stored is skipped."""
    for bug in KNOWN.values():
        for version in (*bug.versions, INSTALLED):
            key = f"{bug.model} {version}"
            if only in key and key not in stored:
                yield key, _in_process(bug.model, folder / version if version != INSTALLED else None)


def _in_process(model: str, packages: Path | None) -> dict[str, Any]:
    paths = [*([str(packages)] if packages else []), os.environ.get("PYTHONPATH", ""), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.wiring.known", model],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def ask(model: str) -> dict[str, Any]:
    """The findings of family D at warning or above, with the version that was checked."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    build = KNOWN[model].build
    report = check_case(build(), rebuild=Rebuild(make=build, seconds=0.0))
    question = report.profile.question
    offset = question.offset if question is not None else None
    return {
        "version": importlib.import_module("transformers").__version__,
        "verdict": report.verdict,
        "findings": [
            {"name": each.name, "severity": each.severity, "text": f"{each.where}: {each.message}"}
            for each in report.findings
            if each.code.startswith("D")
        ],
        "offset": None if offset is None else f"{offset.input} at {offset.offset}",
        "gaps": [f"{gap.what}: {gap.why}" for gap in report.coverage.gaps],
    }


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1])))
