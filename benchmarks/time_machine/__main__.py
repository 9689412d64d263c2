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
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.result_files import ROOT, fill_file, load, save
from benchmarks.time_machine import history, page, sweep, worker
from benchmarks.time_machine.bug import KnownBug
from benchmarks.time_machine.known import KNOWN
from benchmarks.time_machine.unreported import UNREPORTED
from benchmarks.time_machine.wheels import Environment, WheelInstaller, environments
from benchmarks.zoo.vision_ops import declare_vision_ops

RESULTS = "time_machine"
KEPT_OF_ANSWER = ("status", "reason", "findings")
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
    parser.add_argument("--later", action="store_true", help="store answers apart from the first ones")
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="keep the installed releases in this folder and use them again",
    )
    options = parser.parse_args(arguments)
    COMMANDS[options.command](options)


def show_list(options: argparse.Namespace) -> None:
    for bug in KNOWN.values():
        print(f"{bug.date}  {bug.report:45} {bug.package} {bug.sick}: {bug.model}: {bug.bug}")


def run(options: argparse.Namespace) -> None:
    """Check every bug in its sick and its fixed release, wheel by wheel; what is stored is skipped."""
    kept_as = "later" if options.later else "cases"
    stored = {} if options.again else load(RESULTS).get(kept_as, {})
    with environments(options.wheels) as installer:
        for job, names in _jobs(options.only, stored).items():
            start, used = time.perf_counter(), _children_seconds()
            install_seconds, answers = _run_wheel(installer, job, names)
            seconds = {
                "install_seconds": round(install_seconds, 1),
                "check_seconds": round(sum(answer.get("seconds", 0.0) for _, answer in answers), 1),
                "processor_seconds": round(_children_seconds() - used, 1),
                "wall_seconds": round(time.perf_counter() - start, 1),
                "cases": len(names),
            }
            _store(job, answers, seconds, kept_as)
            for name, answer in answers:
                print(job.package, job.version, name, answer["status"], flush=True)


def _children_seconds() -> float:
    """Processor time of all child processes so far: pip, the imports and the checks."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _store(
    job: Job, answers: list[tuple[str, dict[str, Any]]], seconds: dict[str, Any], kept_as: str
) -> None:
    """Add the answers to what is stored by now; another run may have stored something in between."""
    results = load(RESULTS)
    if kept_as == "cases":
        results.setdefault("wheels", {})[f"{job.package} {job.version}"] = seconds
    kept = results.setdefault(kept_as, {})
    kept |= {answer_key(name, job.version): answer for name, answer in answers}
    save(RESULTS, results)


def answer_key(key: str, version: str) -> str:
    return f"{key} {version}"


def _jobs(only: str, stored: Collection[str]) -> dict[Job, list[str]]:
    """By release: the bugs without a stored answer."""
    jobs: dict[Job, list[str]] = {}
    for bug in KNOWN.values():
        for version in (bug.sick, bug.fixed):
            if re.search(only, bug.key) and answer_key(bug.key, version) not in stored:
                jobs.setdefault(Job(bug.package, version, bug.extra), []).append(bug.key)
    return jobs


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


def search(options: argparse.Namespace) -> None:
    """Find the first and the last release that has each named bug; what is stored is not asked again."""
    answers = load(RESULTS)
    wanted = [
        bug
        for bug in KNOWN.values()
        if re.search(options.only, bug.key)
        and page.says(page.answer_of(answers, bug, bug.sick), bug) == "named"
    ]
    with environments(options.wheels) as installer:
        for bug in wanted:
            together = [each for each in wanted if (each.package, each.extra) == (bug.package, bug.extra)]
            versions = _versions(bug.package)
            reported = [versions.index(each) for each in (bug.since, bug.until) if each in versions]
            while (known := _bounds(bug)).open_places:
                place = history.next_place(known, reported)
                asked = [each for each in together if _bounds(each).is_open(place)]
                _ask_release(installer, Job(bug.package, versions[place], bug.extra), asked)
            print(bug.key, _bounds(bug), flush=True)


def _versions(package: str) -> list[str]:
    """The releases of a package, as they were listed when they were first asked for."""
    results = load(history.RESULTS)
    releases = results.setdefault("releases", {})
    if package not in releases:
        releases[package] = history.released_versions(package)
        save(history.RESULTS, results)
    return releases[package]


def _bounds(bug: KnownBug) -> history.Bounds:
    return page.bounds_of(load(history.RESULTS), bug, _versions(bug.package))


def _ask_release(installer: WheelInstaller, job: Job, bugs: list[KnownBug]) -> None:
    """Store what the check says about the cases of these bugs in a release."""
    _, answers = _run_wheel(installer, job, [bug.key for bug in bugs])
    results = load(history.RESULTS)
    for name, answer in answers:
        kept = {each: answer[each] for each in KEPT_OF_ANSWER if each in answer}
        results["cases"][answer_key(name, job.version)] = kept
        print(job.version, name, answer["status"], page.says(answer, KNOWN[name]), flush=True)
    save(history.RESULTS, results)


def run_sweep(options: argparse.Namespace) -> None:
    """Check the types without a known bug, release by release; what is stored is skipped."""
    with environments(options.wheels) as installer:
        for release in sweep.releases():
            key = f"{release.package} {release.version}"
            if not re.search(options.only, key) or (
                not options.again and key in load(sweep.RESULTS).get("wheels", {})
            ):
                continue
            used = _children_seconds()
            with _environment(installer, Job(release.package, release.version, ())) as environment:
                left = sweep.MAX_WHEEL_SECONDS - (_children_seconds() - used)
                count, answers = sweep.check_types(environment, release, left)
                for answer in answers.values():
                    if "reason" in answer:
                        answer["reason"] = _without_folders(answer["reason"], environment)
            results = load(sweep.RESULTS)
            seconds = round(_children_seconds() - used, 1)
            results.setdefault("wheels", {})[key] = {"types": count, "processor_seconds": seconds}
            results["cases"][key] = answers
            save(sweep.RESULTS, results)
            warned = {name: found for name, answer in answers.items() if (found := page.alarms(answer))}
            print(key, count, len(answers), f"{seconds} s", warned, flush=True)


def show(options: argparse.Namespace) -> None:
    """Run the test of every unreported finding in its release, without Leadline, and store what it prints."""
    with environments(options.wheels) as installer:
        for each in UNREPORTED:
            job = Job(each.package, each.version, each.extra)
            stored = load(RESULTS).get("unreported", {})
            if re.search(options.only, each.name) and (options.again or each.name not in stored):
                with _environment(installer, job) as environment:
                    out, err = environment.run(partial(_execute, each.test))
                printed = (out.strip() or err.strip() or "nothing").splitlines()[-1]
                results = load(RESULTS)
                results.setdefault("unreported", {})[each.name] = _without_folders(printed, environment)
                save(RESULTS, results)
                print(each.name, printed, flush=True)


def _execute(test: str) -> None:
    declare_vision_ops()
    exec(test, {})


def render(options: argparse.Namespace) -> None:
    fill_file(PAGE, RESULTS, page.render(load(RESULTS), load(sweep.RESULTS), load(history.RESULTS)))


COMMANDS = {
    "list": show_list,
    "run": run,
    "sweep": run_sweep,
    "search": search,
    "show": show,
    "render": render,
}


if __name__ == "__main__":
    main()
