"""Step time and memory of our blocks beside everybody else's, measured in turns in fresh processes.

`python benchmarks/blocks.py` measures and writes results/blocks.json and the tables in docs/nn.md. Peers that
are not installed are left out and named. Time is processor time of one thread, which is what a quiet machine
would take and which a busy one disturbs little; models take turns, so that what disturbance there is hits all
of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.nn import Encoder, Options

RESULTS = Path(__file__).parent / "results" / "blocks.json"
PAGE = Path(__file__).parent.parent / "docs" / "nn.md"

SIZES = {"small": (64, 4, 64, 16, 100), "wide": (256, 4, 128, 8, 24)}  # width, heads, time, batch, depth
DEPTHS = (10, 100, 1000)
STEPS = 4  # timed steps a process, the fastest counts: noise on a shared machine only adds time
REPEATS = 5  # processes a model, in turns with the others

Size = tuple[int, int, int, int, int]


class HandWritten(nn.Module):
    """The least code for a pre-norm block on SDPA with a packed QKV: what ours must not be slower than."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time_, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time_, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time_, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def ours(size: Size, **options: Any) -> nn.Module:
    width, heads, _, _, depth = size
    return Encoder(width, heads, depth, scheme="pre", options=Options(positions="none", **options))


def hand_written(size: Size) -> nn.Module:
    width, heads, _, _, depth = size
    return nn.Sequential(*(HandWritten(width, heads) for _ in range(depth)), nn.LayerNorm(width))


def torch_encoder(size: Size) -> nn.Module:
    width, heads, _, _, depth = size
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)


def gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    width, heads, time_, _, depth = size
    config = GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=depth,
        n_positions=time_,
        vocab_size=8,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return FromEmbeddings(GPT2Model(config))


def bert(size: Size) -> nn.Module:
    from transformers import BertConfig, BertModel

    width, heads, time_, _, depth = size
    config = BertConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=depth,
        intermediate_size=4 * width,
        max_position_embeddings=time_,
        vocab_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return FromEmbeddings(BertModel(config, add_pooling_layer=False))


class FromEmbeddings(nn.Module):
    """A Hugging Face model fed with vectors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(inputs_embeds=x).last_hidden_state
        return hidden


def x_transformers(size: Size) -> nn.Module:
    from x_transformers import Encoder as Peer

    width, heads, _, _, depth = size
    return Peer(dim=width, depth=depth, heads=heads, attn_dim_head=width // heads, attn_flash=True)  # type: ignore[no-any-return]


def torchscale(size: Size) -> nn.Module:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder as Peer

    width, heads, _, _, depth = size
    config = EncoderConfig(
        encoder_embed_dim=width,
        encoder_attention_heads=heads,
        encoder_ffn_embed_dim=4 * width,
        encoder_layers=depth,
        encoder_normalize_before=True,
        subln=False,
        no_output_layer=True,
        dropout=0.0,
    )
    return FromTokenEmbeddings(Peer(config))


class FromTokenEmbeddings(nn.Module):
    """A torchscale encoder fed with vectors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(src_tokens=None, token_embeddings=x)["encoder_out"]
        return hidden


MODELS: dict[str, Callable[[Size], nn.Module]] = {
    "leadline": ours,
    "hand-written SDPA": hand_written,
    "nn.TransformerEncoder": torch_encoder,
    "Hugging Face GPT-2": gpt2,
    "Hugging Face BERT": bert,
    "x-transformers": x_transformers,
    "torchscale": torchscale,
}
MODES: dict[str, Callable[[Size], nn.Module]] = {
    "plain": ours,
    "lean": lambda size: ours(size, lean=True),
    "checkpoint": lambda size: ours(size, checkpoint_every=round(math.sqrt(size[4]))),
}


def measure_here(model: nn.Module, size: Size, steps: int) -> dict[str, float]:
    """Processor seconds of the fastest step, of its optimiser part, and the process's peak resident memory in
    MB."""
    width, _, time_, batch, _ = size
    x = torch.randn(batch, time_, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    timings = []
    for _ in range(steps + 1):
        start = time.process_time()
        model(x).square().mean().backward()
        middle = time.process_time()
        optimizer.step()
        optimizer.zero_grad()
        timings.append((time.process_time() - start, time.process_time() - middle))
    seconds, optimizer_seconds = min(timings[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "optimizer_seconds": optimizer_seconds, "peak_mb": peak}


def measure(table: str, name: str, size: Size, steps: int = STEPS) -> dict[str, float] | None:
    """`measure_here` in a fresh process; None if the model cannot be built there."""
    command = [sys.executable, __file__, "--one", json.dumps([table, name, size, steps])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare(
    table: dict[str, Any], label: str, size: Size, *, repeats: int, steps: int = STEPS
) -> dict[str, Any]:
    """Every model of a table in turns, so that a disturbance hits all; the repeats of each."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in table}
    for _ in range(repeats):
        for name in table:
            row = measure(label, name, size, steps)
            if row is not None:
                found[name].append(row)
    return {name: summary(rows) for name, rows in found.items() if rows}


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    seconds = [row["seconds"] for row in rows]
    return {
        "seconds": round(min(seconds), 4),
        "median_seconds": round(statistics.median(seconds), 4),
        "all_seconds": [round(s, 4) for s in seconds],
        "optimizer_seconds": round(min(row["optimizer_seconds"] for row in rows), 4),
        "peak_mb": round(statistics.median(row["peak_mb"] for row in rows), 1),
    }


def by_depth(*, repeats: int) -> dict[str, Any]:
    """Time and memory a layer of each of our modes, and of the hand-written block, from 10 to 1000 layers."""
    width, heads, time_, batch, _ = SIZES["small"]
    empty = measure("modes", "plain", (width, heads, time_, batch, 1), 1)
    rows: dict[str, Any] = {"one_layer_mb": empty["peak_mb"] if empty else None}
    for depth in DEPTHS:
        size = (width, heads, time_, batch, depth)
        steps = 2 if depth == 1000 else STEPS
        rows[str(depth)] = compare(MODES, "modes", size, repeats=repeats, steps=steps)
        rows[str(depth)] |= compare(
            {"hand-written SDPA": hand_written}, "models", size, repeats=repeats, steps=steps
        )
        print(depth, rows[str(depth)], flush=True)
    return rows


def run(repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "repeats": repeats, "sizes": SIZES}
    results["load_before"] = os.getloadavg()
    for label, size in SIZES.items():
        results[label] = compare(MODELS, "models", size, repeats=repeats)
        print(label, {k: v["seconds"] for k, v in results[label].items()}, flush=True)
    results["depth"] = by_depth(repeats=max(1, repeats // 2))
    results["load_after"] = os.getloadavg()
    return results


def render_speed(results: dict[str, Any]) -> str:
    """The table of step times, as ratios to the fastest peer."""
    lines = [
        "| model | " + " | ".join(_size_name(size) for size in results["sizes"].values()) + " |",
        "|---|---|---|",
    ]
    for name in MODELS:
        cells = [_ratio(results[label], name) for label in results["sizes"]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _size_name(size: list[int]) -> str:
    return "d={0} seq {2} batch {3} depth {4}".format(*size)


def _ratio(rows: dict[str, Any], name: str) -> str:
    if name not in rows:
        return "not installed"
    peers = [row["seconds"] for peer, row in rows.items() if peer != "leadline"]
    return f"{rows[name]['seconds'] / min(peers):.2f} ({rows[name]['seconds'] * 1000:.0f} ms)"


def render_depth(results: dict[str, Any]) -> str:
    """The table of time and memory a layer."""
    depth = results["depth"]
    names = [*MODES, "hand-written SDPA"]
    lines = ["| | " + " | ".join(f"{d} layers" for d in DEPTHS) + " |", "|---|" + "---|" * len(DEPTHS)]
    for name in names:
        cells = []
        for d in DEPTHS:
            row = depth[str(d)].get(name)
            cells.append("" if row is None else _layer_cell(row, d, depth["one_layer_mb"]))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _layer_cell(row: dict[str, Any], depth: int, one_layer_mb: float) -> str:
    memory = (row["peak_mb"] - one_layer_mb) / (depth - 1)
    return f"{row['seconds'] / depth * 1000:.2f} ms, {memory:.2f} MB"


def write_between_markers(name: str, text: str) -> None:
    """Replace what stands between the two markers `name` of the docs page."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, rest = PAGE.read_text().split(opening, 1)
    PAGE.write_text(f"{head}{opening}\n{text}\n{closing}{rest.split(closing, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="measure one model in this process (used by the script itself)")
    parser.add_argument("--table", action="store_true", help="only write the tables from the stored results")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        table, name, size, steps = json.loads(options.one)
        build = {"models": MODELS, "modes": MODES}[table][name]
        print(json.dumps(measure_here(build(tuple(size)), tuple(size), steps)))
        return
    if not options.table:
        RESULTS.write_text(json.dumps(run(options.repeats), indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    write_between_markers("block-speed", render_speed(results))
    write_between_markers("block-depth", render_depth(results))


if __name__ == "__main__":
    main()
