"""The commands of the benchmark; see the docstring of the package."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.result_files import ROOT, Results, fill_file, load, save
from benchmarks.time_machine import page, worker
from benchmarks.time_machine.known import KNOWN, TYPES
from benchmarks.time_machine.unreported import UNREPORTED
from benchmarks.time_machine.wheels import Environment, WheelInstaller, environments

RESULTS = "time_machine"
PAGE = ROOT / "docs" / "lab-notes" / "time-machine.md"


class Job(NamedTuple):
    """One release of one package, with what must stand beside it."""

    package: str
    version: str
    extra: tuple[str, ...]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_machine")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--only", default="", metavar="PATTERN", help="only bugs whose key matches")
    parser.add_argument("--again", action="store_true", help="also what has a stored answer")
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="folder with releases that are installed already"
    )
    options = parser.parse_args(arguments)
    COMMANDS[options.command](options)


def show_list(options: argparse.Namespace) -> None:
    for bug in KNOWN.values():
        print(f"{bug.date}  {bug.report:45} {bug.package} {bug.sick}: {bug.model}: {bug.bug}")


def run(options: argparse.Namespace) -> None:
    """Check every bug in its sick and its fixed release, wheel by wheel; what is stored is skipped."""
    with environments(options.wheels) as installer:
        for job, names in _jobs(options.only, _empty() if options.again else load(RESULTS)).items():
            start, used = time.perf_counter(), _children_seconds()
            install_seconds, answers = _run_wheel(installer, job, names)
            seconds = {
                "install_seconds": round(install_seconds, 1),
                "check_seconds": round(sum(answer.get("seconds", 0.0) for _, answer in answers), 1),
                "processor_seconds": round(_children_seconds() - used, 1),
                "wall_seconds": round(time.perf_counter() - start, 1),
                "cases": len(names),
            }
            _store(job, answers, seconds)
            for name, answer in answers:
                print(job.package, job.version, name, answer["status"], flush=True)


def _children_seconds() -> float:
    """Processor time of all child processes so far: pip, the imports and the checks."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _empty() -> Results:
    return {"cases": {}}


def _store(job: Job, answers: list[tuple[str, dict[str, Any]]], seconds: dict[str, Any]) -> None:
    """Add the answers to what is stored by now; another run may have stored something in between."""
    results = load(RESULTS)
    results.setdefault("wheels", {})[f"{job.package} {job.version}"] = seconds
    types = results.setdefault("types", {})
    for name, answer in answers:
        kept = results["cases"] if name in KNOWN else types
        kept[answer_key(name, job.version)] = answer
    save(RESULTS, results)


def answer_key(key: str, version: str) -> str:
    return f"{key} {version}"


def _jobs(only: str, results: Results) -> dict[Job, list[str]]:
    """By release: the bugs without an answer, and the types without a known bug that have none either."""
    jobs: dict[Job, list[str]] = {}
    for bug in KNOWN.values():
        for version in (bug.sick, bug.fixed):
            if re.search(only, bug.key):
                names = jobs.setdefault(Job(bug.package, version, bug.extra), [])
                names += [bug.key] * (answer_key(bug.key, version) not in results["cases"])
    types = results.get("types", {})
    for job, names in jobs.items():
        names += [each for each in TYPES.get(job.package, ()) if answer_key(each, job.version) not in types]
    chosen = [(job, names) for job, names in jobs.items() if names]
    return dict(sorted(chosen, key=lambda each: each[1][0] not in KNOWN))  # bugs first, then types alone


def _run_wheel(
    installer: WheelInstaller, job: Job, names: list[str]
) -> tuple[float, list[tuple[str, dict[str, Any]]]]:
    """The seconds of the installation, and the answer for each name."""
    try:
        with _environment(installer, job) as environment:
            return environment.seconds, list(_answers(environment, job, names))
    except RuntimeError as error:
        return 0.0, [(name, {"status": "not installed", "reason": str(error)}) for name in names]


def _environment(installer: WheelInstaller, job: Job) -> AbstractContextManager[Environment]:
    """The folders of a release; none if this environment has it."""
    if _is_here(job):
        return nullcontext(Environment(folders=(), seconds=0.0))
    return installer.install(job.package, job.version, job.extra)


def _is_here(job: Job) -> bool:
    """Whether this environment has the release, so that it needs no folder."""
    try:
        return importlib.metadata.version(job.package) == job.version and not job.extra
    except importlib.metadata.PackageNotFoundError:
        return False


def _answers(environment: Environment, job: Job, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    out, err = environment.run(partial(worker.check_all, job.package, names))
    answers = {answer.pop("key"): answer for answer in _lines(out)}
    reason = (err.strip().splitlines() or ["no output"])[-1][:300]
    for name in names:
        yield name, answers.get(name, {"status": "crashed", "reason": _without_folders(reason, environment)})


def _lines(output: str) -> Iterable[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"key"')]


def _without_folders(text: str, environment: Environment) -> str:
    """The text without the paths of this machine."""
    for folder in (*environment.folders, ROOT, Path(sys.prefix)):
        text = text.replace(f"{folder}{os.sep}", "")
    return text


def show(options: argparse.Namespace) -> None:
    """Run the test of every unreported finding in its release, without Leadline, and store what it prints."""
    with environments(options.wheels) as installer:
        for each in UNREPORTED:
            job = Job(each.package, each.version, each.extra)
            stored = load(RESULTS).get("unreported", {})
            if re.search(options.only, each.name) and (options.again or each.name not in stored):
                with _environment(installer, job) as environment:
                    out, err = environment.run(partial(exec, each.test, {}))
                printed = (out.strip() or err.strip() or "nothing").splitlines()[-1]
                results = load(RESULTS)
                results.setdefault("unreported", {})[each.name] = _without_folders(printed, environment)
                save(RESULTS, results)
                print(each.name, printed, flush=True)


def render(options: argparse.Namespace) -> None:
    fill_file(PAGE, RESULTS, page.render(load(RESULTS)))


COMMANDS = {"list": show_list, "run": run, "show": show, "render": render}


if __name__ == "__main__":
    main()
