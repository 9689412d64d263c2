"""Compare step time and memory of leadline.nn with other libraries, alternating in fresh processes.

    python -m benchmarks.blocks

The result goes to benchmarks/results/blocks.json and into the tables of docs/reference/nn.md. Libraries that are not
installed are left out and listed. Time is processor time of one thread, which other programs disturb little. Models
alternate, so that any disturbance affects all of them.
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

from benchmarks.timing import rounded, spread
from leadline.nn import Encoder, Options

RESULTS = Path(__file__).parent / "results" / "blocks.json"
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "nn.md"

SIZES = {"small": (64, 4, 64, 16, 100), "wide": (256, 4, 128, 8, 24)}  # width, heads, time, batch, depth
GOAL_SIZES = {"batch 8": (64, 4, 64, 8, 32), "batch 16": (64, 4, 64, 16, 32)}
DEPTHS = (10, 100, 1000)
ROUNDS = 7  # timed steps per model, alternating with the others
GOAL_ROUNDS = 16

Size = tuple[int, int, int, int, int]


class HandWritten(nn.Module):
    """The least code for a pre-norm block on SDPA with packed QKV; leadline.nn must not be slower."""

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


class Causal(nn.Module):
    """An encoder in which no token sees a later one, as in GPT-2."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x, causal=True)
        return y


def hand_written(size: Size) -> nn.Module:
    width, heads, _, _, depth = size
    return nn.Sequential(*(HandWritten(width, heads) for _ in range(depth)), nn.LayerNorm(width))


def torch_encoder(size: Size) -> nn.Module:
    width, heads, _, _, depth = size
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)


def gpt2(size: Size, activation: str = "gelu") -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    width, heads, time_, _, depth = size
    config = GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=depth,
        n_positions=time_,
        vocab_size=8,
        activation_function=activation,
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
    """A Hugging Face model whose input is embeddings."""

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
    """A torchscale encoder whose input is embeddings."""

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
    "hand-written SDPA": hand_written,
}
GOAL_MODELS: dict[str, Callable[[Size], nn.Module]] = {
    "leadline": ours,
    "leadline, causal": lambda size: Causal(ours(size)),
    "nn.TransformerEncoder": torch_encoder,
    "Hugging Face GPT-2, erf GELU": gpt2,
    "Hugging Face GPT-2, tanh GELU (its default)": lambda size: gpt2(size, "gelu_new"),
}
# Each other model with ours that computes the same, and the largest ratio that is wanted.
GOALS = {
    "nn.TransformerEncoder": ("leadline", "0.90"),
    "Hugging Face GPT-2, erf GELU": ("leadline, causal", "0.85"),
    "Hugging Face GPT-2, tanh GELU (its default)": ("leadline, causal", ""),
}
TABLES = {"models": MODELS, "modes": MODES, "goals": GOAL_MODELS}
PARTS = [*SIZES, "depth", "goals"]


def measure_in_turns(table: str, names: list[str], size: Size, rounds: int) -> dict[str, Any]:
    """Return the processor seconds of a step and of its optimizer part; models alternate step by step in one process.

    `ratio` is the median over rounds of a model's step time over that of the first model in the same round, so that
    slow disturbances cancel. A model that cannot be built is left out.
    """
    width, _, time_, batch, _ = size
    x = torch.randn(batch, time_, width)
    models = {name: model for name in names if (model := _try_to_build(table, name, size)) is not None}
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for name, m in models.items()}
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    order = list(models)
    for _ in range(rounds + 1):
        order = [*order[1:], order[0]]  # the first model pays for the memory that the last one left
        for name in order:
            timings[name].append(_step(models[name], optimizers[name], x))
    return {name: _summary(rows[1:], timings[names[0]][1:]) for name, rows in timings.items()}


def _try_to_build(table: str, name: str, size: Size) -> nn.Module | None:
    try:
        return TABLES[table][name](size)
    except ImportError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> tuple[float, float]:
    start = time.process_time()
    model(x).square().mean().backward()
    middle = time.process_time()
    optimizer.step()
    optimizer.zero_grad()
    end = time.process_time()
    return end - start, end - middle


def _summary(rows: list[tuple[float, float]], first: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = [row[0] / reference[0] for row, reference in zip(rows, first, strict=True)]
    return {
        "seconds": round(statistics.median(row[0] for row in rows), 4),
        "optimizer_seconds": round(statistics.median(row[1] for row in rows), 4),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def peak_mb(table: str, name: str, size: Size, rounds: int) -> float:
    """Return the peak resident memory of this process after `rounds` steps of one model."""
    measure_in_turns(table, [name], size, rounds)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_fresh_process(job: str, *arguments: Any) -> Any:
    """Return the result of `measure_in_turns` or `peak_mb` from a new process."""
    command = [sys.executable, "-m", "benchmarks.blocks", "--job", json.dumps([job, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PAGE.parent.parent)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def by_depth(rounds: dict[int, int]) -> dict[str, Any]:
    """Return time and peak memory of each of our modes and of the hand-written block, by depth."""
    width, heads, time_, batch, _ = SIZES["small"]
    rows: dict[str, Any] = {}
    for depth in (1, *DEPTHS):
        size = (width, heads, time_, batch, depth)
        names = [*MODES]
        rows[str(depth)] = in_fresh_process("turns", "modes", names, size, rounds.get(depth, 1))
        for name in names:
            rows[str(depth)][name]["peak_mb"] = round(in_fresh_process("peak", "modes", name, size, 1), 1)
        print(depth, rows[str(depth)], flush=True)
    return rows


def run(parts: list[str]) -> dict[str, Any]:
    """Measure these parts, each with the load of the machine before it. Stored results of the other parts stay."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"torch": torch.__version__, "threads": 1, "sizes": SIZES}
    for part in parts:
        results.setdefault("load", {})[part] = os.getloadavg()
        if part == "depth":
            results[part] = by_depth({10: 4 * ROUNDS, 100: ROUNDS, 1000: 3})
        elif part == "goals":
            results[part] = {label: _goal_rows(size) for label, size in GOAL_SIZES.items()}
        else:
            results[part] = in_fresh_process("turns", "models", [*MODELS], SIZES[part], ROUNDS)
            print(part, {name: row["ratio"] for name, row in results[part].items()}, flush=True)
    return results


def _goal_rows(size: Size) -> dict[str, Any]:
    """Return, for each other model, its step time and the quartiles of ours divided by it, round by round."""
    measured = in_fresh_process("turns", "goals", [*GOAL_MODELS], size, GOAL_ROUNDS)
    rows: dict[str, Any] = {}
    for peer, (own, _) in GOALS.items():
        if peer in measured:
            ratios = [
                ours / theirs
                for ours, theirs in zip(measured[own]["ratios"], measured[peer]["ratios"], strict=True)
            ]
            rows[peer] = {"ratio": rounded(spread(ratios), 3), "seconds": measured[peer]["seconds"]}
    print(size, rows, flush=True)
    return rows


def render_speed(results: dict[str, Any]) -> str:
    """Return the table of step times, as ratios to the fastest other library."""
    lines = ["| model | " + " | ".join(map(_size_name, results["sizes"].values())) + " |", "|---|---|---|"]
    for name in MODELS:
        cells = [_ratio(results[label], name) for label in results["sizes"]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _size_name(size: list[int]) -> str:
    return "d={0} seq {2} batch {3} depth {4}".format(*size)


def _ratio(rows: dict[str, Any], name: str) -> str:
    if name not in rows:
        return "not installed"
    fastest = min(row["ratio"] for peer, row in rows.items() if peer != "leadline")
    return f"{rows[name]['ratio'] / fastest:.2f} ({rows[name]['seconds'] * 1000:.0f} ms)"


def render_depth(results: dict[str, Any]) -> str:
    """Return the table of time and memory per layer; memory is the increase over one layer."""
    depth = results["depth"]
    lines = ["| | " + " | ".join(f"{d} layers" for d in DEPTHS) + " |", "|---|" + "---|" * len(DEPTHS)]
    for name in MODES:
        cells = [_layer_cell(depth[str(d)][name], depth["1"][name], d) for d in DEPTHS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _layer_cell(row: dict[str, Any], one: dict[str, Any], depth: int) -> str:
    memory = (row["peak_mb"] - one["peak_mb"]) / (depth - 1)
    return f"{row['ratio']:.2f} ({row['seconds'] / depth * 1000:.2f} ms), {memory:.2f} MB"


def render_goals(results: dict[str, Any]) -> str:
    """Return the table of our step time divided by that of each model with a goal."""
    lines = [
        "| leadline over | " + " | ".join(GOAL_SIZES) + " | goal |",
        "|---|" + "---|" * (len(GOAL_SIZES) + 1),
    ]
    for peer, (_, goal) in GOALS.items():
        cells = [_goal_cell(results["goals"][label].get(peer)) for label in GOAL_SIZES]
        lines.append(f"| {peer} | " + " | ".join(cells) + f" | {goal} |")
    return "\n".join(lines)


def _goal_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not installed"
    return "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["ratio"])


def write_between_markers(name: str, text: str) -> None:
    """Replace the text between the two markers `name` of the docs page."""
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, rest = PAGE.read_text().split(opening, 1)
    PAGE.write_text(f"{head}{opening}\n{text}\n{closing}{rest.split(closing, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", help="one measurement in this process (used by the script itself)")
    parser.add_argument("--part", action="append", choices=PARTS, help="measure this part only (repeatable)")
    parser.add_argument("--table", action="store_true", help="only write the tables from the stored results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.job:
        job, *arguments = json.loads(options.job)
        print(json.dumps({"turns": measure_in_turns, "peak": peak_mb}[job](*arguments)))
        return
    if not options.table:
        RESULTS.write_text(json.dumps(run(options.part or PARTS), indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    write_between_markers("block-speed", render_speed(results))
    write_between_markers("block-depth", render_depth(results))
    write_between_markers("block-goals", render_goals(results))


if __name__ == "__main__":
    main()
