"""Types without a known bug: build as many of a release as three minutes allow, and check each.

A release lists its own types; the zoo knows how to build a small one of each. What a release says about every type that
it could build is stored. Findings about the wiring at warning or above are judged by hand in `judgments.py`.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.time_machine.known import BUGS
from benchmarks.time_machine.wheels import Environment
from benchmarks.time_machine.worker import ask
from benchmarks.zoo.collection import find_architecture, names
from benchmarks.zoo.measure import set_up_process

RESULTS = "time_machine_types"
# Heuristic: processor time per wheel, with its installation; the goal is three minutes beside other work.
MAX_WHEEL_SECONDS = 60.0
# Heuristic: seconds of processor time; most types take one or two.
MAX_TYPE_SECONDS = 20
# Heuristic: a type that needs more fails alone and leaves memory for the rest of the machine.
MAX_MEMORY_BYTES = 6 << 30
# Heuristic: one release per year or so, which this torch still imports.
VISION_RELEASES = ("0.6.13", "0.9.16")
TEXT_HEADS = ("seq2seq", "speech", "masked", "causal")
"""Types with these heads come first, because they compute their own loss."""

Answer = dict[str, Any]


class Release(NamedTuple):
    """One release whose types are swept; `source` is the prefix of their names."""

    package: str
    version: str
    source: str


def releases() -> list[Release]:
    """The sick releases of the known bugs whose package the zoo can build, and some of timm."""
    sources = {
        "transformers": "hf",
        "diffusers": "diffusers",
        "x-transformers": "x-transformers",
        "vit-pytorch": "vit-pytorch",
    }
    sick = {(bug.package, bug.sick) for bug in BUGS if bug.package in sources}
    swept = [Release(package, version, sources[package]) for package, version in sorted(sick)]
    return [*swept, *(Release("timm", version, "timm") for version in VISION_RELEASES)]


def check_types(environment: Environment, release: Release, seconds: float) -> tuple[int, dict[str, Answer]]:
    """How many types the release has, and the answers about those for which the seconds suffice.

    A type that kills its process is an answer, too, and the others continue in a new process.
    """
    answers: dict[str, Answer] = {}
    left, count = seconds, 0
    while left > 0:
        out, err = environment.run(partial(_check_until, release.source, frozenset(answers), left))
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        listed = next((line["names"] for line in lines if "names" in line), [])
        count = count or len(listed)
        answers |= {line.pop("key"): line for line in lines if "key" in line}
        end = next((line["end"] for line in lines if "end" in line), None)
        lost = next((name for name in listed if name not in answers), None)
        if end is not None or lost is None:
            break
        answers[lost] = {"status": "crashed", "reason": (err.strip().splitlines() or [""])[-1][:300]}
        left -= sum(line.get("seconds", 0.0) for line in lines) + MAX_TYPE_SECONDS
    return count, answers


def _check_until(source: str, done: frozenset[str], seconds: float) -> None:
    """Runs in the process of the wheel: one line for each type, and a last one if time did not end it."""
    set_up_process()
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _stop)
    begin = time.process_time()
    listed = [name for name in in_order(source) if name not in done]
    print(json.dumps({"names": listed}), flush=True)
    for name in listed:
        start = time.process_time()
        if start - begin > seconds:
            break
        signal.setitimer(signal.ITIMER_PROF, MAX_TYPE_SECONDS)
        answer = ask(find_architecture(name).build)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(
            json.dumps({"key": name, **answer, "seconds": round(time.process_time() - start, 1)}), flush=True
        )
    print(json.dumps({"end": round(time.process_time() - begin, 1)}), flush=True)


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {MAX_TYPE_SECONDS} s of processor time")


def in_order(source: str) -> Iterator[str]:
    """The names of a source in an order that depends on nothing but the names; those with a loss of their own first."""
    heads: dict[str, str] = {}
    if source == "hf":
        from benchmarks.zoo.huggingface import model_types  # the wheel must be first on the path by now

        heads = {f"hf/{kind}": head for kind, (head, _) in model_types().items()}
    yield from sorted(names([source]), key=lambda name: (heads.get(name) not in TEXT_HEADS, _digest(name)))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
