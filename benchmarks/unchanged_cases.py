"""The cases of `benchmarks.unchanged`: they use public names and the command line only, so that they outlive moves."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from benchmarks.verdicts.case_builder import build as build_problem
from benchmarks.verdicts.problem import Problem
from benchmarks.verdicts.problem_sample import generate
from examples.incidents import ORDER

ROOT = Path(__file__).parents[1]
HELPERS = {  # the modules with models that belong to the tests
    "healthy plain networks": "tests.support.healthy.plain",
    "healthy deep networks": "tests.support.healthy.deep",
    "random architectures": "tests.support.faults.graphs",
    "tiny Hugging Face models": "tests.support.zoo.huggingface",
    "sick models": "tests.support.fix_examples",
}

Cases = Iterator[tuple[str, Callable[[], Any]]]

RANDOM_MODELS, PROBLEMS = 30, 50
REPAIRS = ("learning-rate", "weight-decay", "standardize", "critical-init", "balance", "swap-activation")
FORMATS = ("json", "jsonl", "sarif", "junit", "github")
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
VOCABULARY = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox": ("AutoModelForCausalLM", {**SIZE, **VOCABULARY}),
    "mixtral": ("AutoModelForCausalLM", {**SIZE, **VOCABULARY, "num_key_value_heads": 2, "num_local_experts": 4}),
    "opt": (
        "AutoModelForCausalLM",
        {**SIZE, **VOCABULARY, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
    ),
    "electra": ("AutoModelForMaskedLM", {**SIZE, **VOCABULARY, "embedding_size": 16}),
    "distilbert": ("AutoModelForMaskedLM", {**VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {**VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4},
    "llama": {**SIZE, **VOCABULARY, "num_key_value_heads": 2, "num_hidden_layers": 40},
    "bert": {**SIZE, **VOCABULARY},
    "vit": {**SIZE, "image_size": 32, "patch_size": 8},
    "mixtral": MODELS["mixtral"][1],
}
TARGETS = """
import torch
from torch import nn

def case(model, x):
    return model, x, torch.randint(4, (16,)), nn.functional.cross_entropy

def stack(depth, activation):
    return [part for _ in range(depth) for part in (nn.Linear(16, 16), activation())]

def good():
    return case(nn.Sequential(*stack(2, nn.ReLU), nn.Linear(16, 4)), torch.randn(16, 16))

def bad():
    return case(nn.Sequential(*stack(24, nn.Sigmoid), nn.Linear(16, 4)), torch.randn(16, 16))

def weightless():
    return nn.PReLU(), torch.randn(8, 4), torch.randn(8, 4), nn.functional.mse_loss

def faulty():
    raise ValueError("no model")
"""
COMMANDS: dict[str, tuple[str, ...]] = {
    "check good": ("check", "targets.py:good", "--format", "json", "--output", "good.json"),
    "check bad": ("check", "targets.py:bad", "--format", "json", "--output", "bad.json"),
    "check bad, never fail": ("check", "targets.py:bad", "--no-weights", "--fail-on", "never"),
    "check undecided": ("check", "targets.py:weightless", "--no-rehearsal"),
    "check faulty": ("check", "targets.py:faulty"),
    "check missing file": ("check", "missing.py:good"),
    "check no target": ("check",),
    "check wrong format": ("check", "targets.py:good", "--format", "nonsense"),
    "compare": ("compare", "good.json", "bad.json"),
    "explain": ("explain", "B201"),
    "explain fix": ("explain", "critical-init"),
    "explain unknown": ("explain", "Z999"),
    "rules": ("rules",),
    "rules json": ("rules", "--format", "json"),
    "fixes json": ("fixes", "--format", "json"),
    "report": ("report", "bad.json"),
    "report nonsense": ("report", "targets.py"),
    "report missing": ("report", "missing.json"),
    "report schema": ("report", "--schema"),
    "help": ("--help",),
    "version": ("--version",),
    "unknown command": ("nonsense",),
}


def prepare() -> None:
    """Settings that all cases need: one thread, file names from the root, and models of the tests at hand.

    The instruction set is fixed too: some virtual machines offer instructions for bfloat16 that they cannot execute.
    """
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # oneDNN reads it at its first operation
    os.chdir(ROOT)
    torch.set_num_threads(1)


def helper(name: str) -> ModuleType:
    """The module of the tests with these models."""
    return import_module(HELPERS[name])


def record(made: Any) -> Any:
    """What `to_json` of a report, a repair, a forecast, a trace or an update says."""
    return json.loads(made.to_json())


def checked(build: Callable[[], leadline.Case]) -> Any:
    """The report of the case that `build` makes."""
    return record(leadline.check(build()))


def healthy() -> Cases:
    for name in ("healthy plain networks", "healthy deep networks"):
        for title, build in helper(name).HEALTHY.items():
            yield title, partial(checked, build)


def random_models() -> Cases:
    """Plans come from `random`, because what hypothesis draws depends on the source around it."""
    graphs = helper("random architectures")
    for seed in range(RANDOM_MODELS):
        draw = random.Random(seed)
        parts, wrappers = [*graphs.MODULES, *graphs.FUNCTIONS], graphs.WRAPPERS
        plan = graphs.Plan(
            stages=tuple(
                graphs.Stage(draw.choice(parts), draw.choice(wrappers)) for _ in range(draw.randint(1, 6))
            ),
            shared=draw.random() < 0.5,
            dtype=draw.choice(graphs.DTYPES),
            habits=frozenset(draw.sample(graphs.HABITS, draw.randint(0, 4))),
            optimizer=draw.choice(["SGD", "AdamW", "LBFGS"]),
        )
        yield str(seed), partial(checked, partial(graphs.build, plan))


def verdicts() -> Cases:
    """First a problem of every cause, then further families of each cause."""
    kinds: dict[str, dict[str, Problem]] = {}
    for problem in sorted(generate(), key=lambda each: each.digest):
        kinds.setdefault(f"{problem.cause} {problem.flaw}", {}).setdefault(problem.family, problem)
    rounds = zip_longest(*(families.values() for _, families in sorted(kinds.items())))
    chosen = [problem for each in rounds for problem in each if problem is not None]
    for problem in chosen[:PROBLEMS]:
        yield f"{problem.cause} {problem.key}", partial(checked, partial(build_problem, problem))


def incident(name: str) -> leadline.Case:
    return import_module(f"examples.incidents.{name}").INCIDENT.build()


def incidents() -> Cases:
    for name in ORDER:
        yield name, partial(checked, partial(incident, name))


def hugging_face_case(kind: str) -> leadline.Case:
    """A small model of that type with random weights, and AdamW."""
    import transformers

    auto, fields = MODELS[kind]
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(kind, **fields)).train()
    ids = torch.randint(3, VOCABULARY["vocab_size"], (2, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return leadline.Case(model, {"input_ids": ids, "labels": ids}, optimizer=optimizer)


def predicted(kind: str) -> leadline.Report:
    return leadline.predict({"model_type": kind, **CONFIGS[kind]}, batch=2, tokens=16)


def hugging_face() -> Cases:
    tiny = helper("tiny Hugging Face models")
    for name in ("hf_gpt2", "hf_bert", "hf_llama", "hf_t5", "hf_vit"):
        yield name, partial(checked, getattr(tiny, name))
    for kind in MODELS:
        yield kind, partial(checked, partial(hugging_face_case, kind))
    for kind in CONFIGS:
        yield f"predict {kind}", lambda kind=kind: record(predicted(kind))


def repairs() -> Cases:
    """Without a budget of time the search is deterministic."""
    fix_examples = helper("sick models")
    for name in REPAIRS:
        yield name, lambda name=name: record(leadline.fix(fix_examples.sick(name)))


def block_stack(depth: int, scheme: str = "pre") -> leadline.Case:
    model = leadline.nn.MLP(16, 16, depth, 4, scheme=scheme)
    x, y = torch.randn(16, 16), torch.randint(4, (16,))
    return leadline.Case(model, x, y, F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-3))


def plain_stack(depth: int, rate: float = 0.1) -> leadline.Case:
    layers = [part for _ in range(depth) for part in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    x, y = torch.randn(32, 16), torch.randint(4, (32,))
    return leadline.Case(model, x, y, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=rate))


def forecasts() -> Cases:
    yield "blocks", lambda: record(leadline.forecast(block_stack, (2, 4, 8), seeds=2))
    yield "plain", lambda: record(leadline.forecast(plain_stack, (2, 4, 8), seeds=2))
    yield "one model", lambda: record(leadline.forecast(block_stack(12, "residual-sqrt")))


def norm_stack() -> leadline.Case:
    layers = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    x, y = torch.randn(32, 16), torch.randint(4, (32,))
    return leadline.Case(model, x, y, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


def sizes(model: nn.Module) -> dict[str, float]:
    return {name: float(value.detach().double().norm()) for name, value in model.named_parameters()}


def parts() -> Cases:
    """The public functions that `check` is made of, and those that rescale a model."""
    makers = {"norms": norm_stack, "plain": partial(plain_stack, 4), "blocks": partial(block_stack, 3)}
    for name, make in makers.items():
        yield f"trace {name}", lambda make=make: record(leadline.trace(make()))
        yield f"update {name}", lambda make=make: record(leadline.update(make()))
        yield (
            f"symmetries {name}",
            lambda make=make: msgspec.to_builtins(leadline.symmetries(make()).record, str_keys=True),
        )
    yield "shrink", lambda: sizes(leadline.shrink((case := norm_stack()).model, case.inputs, 0.1))
    yield "balance", lambda: sizes(leadline.balance((case := plain_stack(4)).model, case.inputs))


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of a command line of the code that is imported here."""
    source = str(Path(leadline.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (source, str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }
    line = [sys.executable, "-m", "leadline", *arguments]
    done = subprocess.run(
        line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.returncode, done.stdout


def tokens_case() -> leadline.Case:
    model = leadline.nn.LanguageModel(31, 16, 2, 4, scheme="pre")
    ids = torch.randint(31, (8, 12))
    return leadline.Case(
        model, ids, ids.roll(-1, 1), _token_loss, torch.optim.AdamW(model.parameters(), lr=1e-2)
    )


def _token_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def watched(folder: Path, name: str, make: Callable[[], leadline.Case], steps: int = 80) -> Any:
    """Alerts, the report of the run file, and the numbers of its steps. With `every`, no choice depends on the time."""
    case, path = make(), folder / f"{name}.leadline"
    assert case.optimizer is not None
    assert case.loss is not None
    with leadline.watch(case.model, case.optimizer, store=path, every=10) as watch:
        for _ in range(steps):
            case.optimizer.zero_grad()
            watch.loss(case.loss(case.model(case.inputs), case.targets)).backward()
            case.optimizer.step()
    alerts = sorted(map(msgspec.to_builtins, watch.alerts), key=lambda each: (each["step"], each["code"]))
    code, text = command(folder, "check", path.name, "--format", "json")
    _, table = command(folder, "export", path.name, "--to", "jsonl")
    rows = [json.loads(line) for line in table.splitlines()]
    return {"alerts": alerts, "exit": code, "report": json.loads(text), "steps": rows}


def runs() -> Cases:
    makers = {"calm": partial(plain_stack, 2), "wild": partial(plain_stack, 6, 20.0), "tokens": tokens_case}
    with TemporaryDirectory() as folder:
        for name, make in makers.items():
            yield name, partial(watched, Path(folder), name, make)


def element(node: ElementTree.Element) -> dict[str, Any]:
    text = (node.text or "").strip()
    return {
        "tag": node.tag,
        "attributes": dict(node.attrib),
        "lines": len(text.splitlines()),
        "children": [element(child) for child in node],
    }


def annotation(line: str) -> Any:
    """A line for GitHub: its command, the code and name of its rule, and whether it has a place."""
    found = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    if found is None:
        return line
    title = found[2].partition("title=")[2].split()
    return {
        "command": found[1],
        "rule": " ".join(title[:2]),
        "placed": "file=" in found[2],
        "lines": found[3].count("%0A"),
    }


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    "sarif": json.loads,
    "junit": lambda text: element(ElementTree.fromstring(text)),
    "github": lambda text: [annotation(line) for line in text.splitlines()],
}


def formatted(folder: Path, form: str, build: Callable[[], leadline.Report]) -> Any:
    saved = folder / "saved.json"
    saved.write_text(build().to_json())
    code, text = command(folder, "report", saved.name, "--format", form)
    return {"exit": code, "output": PARSERS[form](text)}


def formats() -> Cases:
    plain = helper("healthy plain networks").HEALTHY
    makers: dict[str, Callable[[], leadline.Report]] = {
        name: lambda name=name: leadline.check(incident(name))
        for name in ("batch_norm_without_skips", "half_precision_attention", "small_embeddings")
    }
    makers |= {name: lambda name=name: leadline.check(plain[name]()) for name in ("mlp relu 3", "resnet")}
    makers["predict llama"] = partial(predicted, "llama")
    with TemporaryDirectory() as folder:
        for name, build in makers.items():
            for form in FORMATS:
                yield f"{name} {form}", partial(formatted, Path(folder), form, build)


def ended(folder: Path, *arguments: str) -> Any:
    """The exit code, and the output if it is JSON."""
    code, text = command(folder, *arguments)
    return {"exit": code, "output": json.loads(text) if text.startswith(("{", "[")) else bool(text)}


def command_lines() -> Cases:
    with TemporaryDirectory() as folder:
        Path(folder, "targets.py").write_text(TARGETS)
        for name, arguments in COMMANDS.items():
            yield name, partial(ended, Path(folder), *arguments)


GROUPS: dict[str, Callable[[], Cases]] = {
    "healthy": healthy,
    "random": random_models,
    "verdicts": verdicts,
    "incidents": incidents,
    "huggingface": hugging_face,
    "repairs": repairs,
    "forecasts": forecasts,
    "parts": parts,
    "runs": runs,
    "formats": formats,
    "cli": command_lines,
}
