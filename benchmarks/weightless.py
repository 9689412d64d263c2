"""Measure what a prediction without weights costs, for models that do not fit this machine.

    python -m benchmarks.weightless            measure cases without a result, fill docs/explanation/weightless.md
    python -m benchmarks.weightless --quick    measure one small model; print it and store nothing

Each case runs in its own process with one thread, from the start of the interpreter to the finished report. Time is
processor time, memory is the largest resident set. Results: benchmarks/results/weightless.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table

GOALS = {
    "70 billion": (15, 1.0),
    "1000": (15, 1.0),
    "trillion": (60, None),
}  # seconds, GB; from the requirements


def llama(**sizes: float) -> dict[str, Any]:
    return {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192, **sizes}


def stack() -> Any:
    """Return a language model of 1000 blocks from `leadline.nn`."""
    import torch

    from leadline import Case
    from leadline.nn import LanguageModel

    model = LanguageModel(vocab=32000, width=256, heads=4, depth=1000)
    ids = torch.randint(32000, (2, 64))
    return Case(
        model,
        ids,
        ids,
        loss=lambda logits, ids: torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()),
    )


MODELS: dict[str, Callable[[], Any]] = {
    "Llama, 80 layers, 70 billion parameters": partial(
        llama,
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
    ),
    "Llama, 96 layers, a trillion parameters": partial(
        llama,
        hidden_size=25600,
        num_hidden_layers=96,
        num_attention_heads=200,
        num_key_value_heads=200,
        intermediate_size=102400,
        initializer_range=0.006,
    ),
    "Llama, 1000 layers of width 256": partial(
        llama,
        hidden_size=256,
        num_hidden_layers=1000,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=1024,
    ),
    "leadline.nn.LanguageModel, 1000 blocks of width 256": lambda: stack,
}
QUICK = partial(
    llama,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=96,
)


def predict(build: Callable[[], Any]) -> dict[str, Any]:
    """Predict in this process; return the report and the cost since the process started."""
    from leadline.checks._diagnosis import make_report, read_trace
    from leadline.tracer.process import pause_garbage_collection
    from leadline.tracer.weightless import trace_config_or_factory

    made = build()
    if not callable(made):
        import transformers  # its import is paid by whoever uses it, and is counted apart

        assert transformers.AutoConfig
    begun = time.process_time()
    with pause_garbage_collection():  # as `leadline.predict` does
        seen = trace_config_or_factory(made, batch=2, tokens=64)
    traced = time.process_time()
    with pause_garbage_collection(cycles=False):
        profile, coverage = read_trace(seen)
        studied = time.process_time()
        report = make_report(seen, profile, coverage)
    done = time.process_time()
    return {
        "parameters": profile.parameters,
        "ops": coverage.ops,
        "blocks": len(profile.blocks),
        "foreseen": sum(block.forward_ms_predicted is not None for block in profile.blocks),
        "verdict": report.verdict,
        "imports_s": begun,
        "trace_s": traced - begun,
        "study_s": studied - traced,
        "judge_s": done - studied,
        "total_s": done,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def measure(name: str) -> dict[str, Any]:
    """Measure a case in a new process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.weightless", "--case", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found = {**json.loads(run.stdout), "load": os.getloadavg()[0]}
    return {key: _rounded(value) for key, value in found.items()}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def render(results: Results) -> str:
    """Return the table of docs/explanation/weightless.md."""
    if not results["cases"]:
        return "Not measured yet."
    where = results["machine"]
    rows = [_row(name, found) for name, found in results["cases"].items()]
    header = [
        "model",
        "parameters",
        "ops",
        "blocks predicted",
        "imports",
        "build and trace",
        "theory and readings",
        "rules",
        "total",
        "peak memory",
        "goal",
        "load",
    ]
    lead = (
        f"Measured on {where['cpu']}, one thread; torch {where['torch']}, Python {where['python']}. Load: processes "
        "that wanted to run meanwhile, on average over a minute; those beyond the cores slow each other's caches."
    )
    return f"{lead}\n\n{table(header, rows)}"


def _row(name: str, found: dict[str, Any]) -> list[str]:
    seconds, memory = next(goal for text, goal in GOALS.items() if text in name)
    parts = [f"{found[f'{part}_s']:.1f} s" for part in ("imports", "trace", "study", "judge")]
    goal = f"{seconds} s" + (f", {memory:.0f} GB" if memory else "")
    foreseen = f"{found['foreseen']} of {found['blocks']}"
    numbers = [f"{found['parameters']:.3g}", f"{found['ops']:,}", foreseen]
    whole = [f"**{found['total_s']:.1f} s**", f"**{found['peak_gb']:.2f} GB**"]
    return [name, *numbers, *parts, *whole, goal, f"{found['load']:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small model; stores nothing")
    parser.add_argument("--case", help="run one case in this process and print its figures")
    chosen = parser.parse_args()
    if chosen.quick or chosen.case:
        print(json.dumps(predict(QUICK if chosen.quick else MODELS[chosen.case])))
        return
    results = run_missing("weightless", {name: partial(measure, name) for name in MODELS}, print)
    fill_file(ROOT / "docs" / "explanation" / "weightless.md", "weightless", render(results))


if __name__ == "__main__":
    main()
