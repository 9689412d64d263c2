"""Run small programs of many shapes with and without `leadline run`: same bits, first verdict, processor time.

    python -m benchmarks.programs_run
    python -m benchmarks.programs_run fine_tuning     only those whose command begins so

Programs that have a result are skipped; delete one from benchmarks/results/programs.json to measure it again. Those
with `--lora` need peft and are left out without it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import psutil

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table

PROGRAMS = ROOT / "tests" / "support" / "programs"
SHAPES = {
    "classifier": "image classifier with loaders and a schedule",
    "language_model": "GPT with its own loss, accumulation, warm-up",
    "language_model --bfloat16": "the same under autocast",
    "recurrent": "LSTM language model, truncated backpropagation",
    "vae": "variational autoencoder, loss of three outputs",
    "gan": "GAN, two optimizers",
    "dqn": "Q-learning with a target network",
    "reinforce": "policy gradient over an episode",
    "parts": "two towers, contrastive loss, loose parameter",
    "two_optimizers": "Muon and AdamW, a schedule each",
    "lbfgs": "LBFGS with a closure",
    "scaled": "GradScaler, autocast, one cycle",
    "compiled": "torch.compile (aot_eager)",
    "hugging_face": "Hugging Face Trainer, GPT-2",
    "lightning_module": "Lightning, network called in training_step",
    "accelerated": "Accelerate with accumulation",
    "distributed": "torchrun, two gloo processes",
    "small_shapes rows_as_sequence": "LSTM over the rows of an image",
    "small_shapes graph": "graph convolution, the whole graph in each step",
    "small_shapes larger_pictures": "super-resolution",
    "small_shapes pairs": "siamese network",
    "small_shapes cells_in_time": "LSTM cells, LBFGS, double precision",
    "small_shapes vision_transformer": "vision transformer, loop in an object",
    "small_shapes layer_by_layer": "forward-forward, `self.forward(x)`",
    "small_shapes actor_and_critic": "actor and critic, one loss per episode",
    "small_shapes by_hand": "gradients applied by hand",
    "small_shapes step_in_backward": "an optimizer per parameter, steps in the backward pass",
    "small_shapes processes": "shared weights, spawned processes train",
    "fine_tuning causal": "Hugging Face Trainer, GPT-2, evaluation",
    "fine_tuning masked": "Hugging Face Trainer, masked tokens",
    "fine_tuning classification": "Hugging Face Trainer, classes of sentences",
    "fine_tuning tokens": "Hugging Face Trainer, classes of tokens",
    "fine_tuning answers": "Hugging Face Trainer, answers in a text",
    "fine_tuning choice": "Hugging Face Trainer, multiple choice",
    "fine_tuning translation": "Hugging Face Trainer, T5",
    "fine_tuning images": "Hugging Face Trainer, vision transformer",
    "fine_tuning causal --loop accelerate": "GPT-2, loop with Accelerate",
    "fine_tuning classification --loop accelerate": "classes of sentences, loop with Accelerate",
    "fine_tuning causal --lora": "peft, LoRA on GPT-2",
}
LAUNCHERS = {
    "distributed": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "fine_tuning causal --loop accelerate": [
        *("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    ],
}
ALARM = re.compile(r"^leadline: (?:error|warning) at step \d+: ([A-Z]\d+)", re.MULTILINE)
VERDICT = re.compile(r"^(TRAINS POORLY|TRAINS|DOES NOT TRAIN|LEARNS THE WRONG THING|UNDECIDED)", re.MULTILINE)


def measure(case: str) -> dict[str, Any]:
    """The program without and with Leadline: seconds, outputs and verdicts."""
    name, *arguments = case.split()
    launcher = LAUNCHERS.get(case, [])
    script = [str(PROGRAMS / f"{name}.py"), *arguments]
    plain = timed([*launcher, *script])
    attached = timed([*launcher, "-m", "leadline", "run", *script])
    return {
        "same": plain["out"] == attached["out"] and plain["code"] == attached["code"] == 0,
        "plain_seconds": plain["seconds"],
        "attached_seconds": attached["seconds"],
        "verdict_seconds": attached["verdict_seconds"],
        "verdicts": VERDICT.findall(attached["err"]),
        "alarms": sorted(set(ALARM.findall(attached["err"]))),
    }


def timed(command: list[str]) -> dict[str, Any]:
    """Run Python with this command, and note how much it computed until the first verdict was printed."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out:
        verdict, lines = None, []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stderr or ():
                lines.append(line)
                if verdict is None and VERDICT.match(line):
                    verdict = _seconds_so_far(process.pid)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        out.seek(0)
        text = out.read()
    return {
        "code": process.returncode,
        "seconds": seconds,
        "verdict_seconds": verdict,
        "out": text,
        "err": "".join(lines),
    }


def _seconds_so_far(pid: int) -> float:
    """Processor seconds of a process and of its children."""
    whole = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    times = [each.cpu_times() for each in whole]
    return sum(each.user + each.system for each in times)


def render(results: Results) -> str:
    rows = [
        [
            SHAPES[name],
            "yes" if case["same"] else "no",
            ", ".join(each.lower() for each in case["verdicts"]) or "not checked",
            ", ".join(case["alarms"]) or "none" if "alarms" in case else "not noted",
            f"{case['plain_seconds']:.0f} s",
            "n/a" if case["verdict_seconds"] is None else f"{case['verdict_seconds']:.0f} s",
            f"{case['attached_seconds']:.0f} s",
        ]
        for name in SHAPES
        if (case := results["cases"].get(name))
    ]
    header = ["program", "same bits", "verdict", "alarms", "alone", "first verdict after", "with Leadline"]
    same = sum(case["same"] for case in results["cases"].values())
    times = "Times are processor seconds; importing torch takes most of those of a program alone."
    return f"{table(header, rows)}\n\n{same} of {len(rows)} programs print the same in every digit. {times}"


def main() -> None:
    start = sys.argv[1] if len(sys.argv) > 1 else ""
    has_peft = importlib.util.find_spec("peft") is not None
    chosen = [name for name in SHAPES if name.startswith(start) and (has_peft or "--lora" not in name)]
    results = run_missing("programs", {name: partial(measure, name) for name in chosen}, print)
    fill_file(ROOT / "docs" / "howto" / "run.md", "programs", render(results))


if __name__ == "__main__":
    main()
