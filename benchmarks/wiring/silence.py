"""Ask the wiring checks about every architecture of the zoo: all are healthy, so every warning must be explained.

    python -m benchmarks.wiring.silence              check what has no stored answer; resumable
    python -m benchmarks.wiring.silence --stale      then also what other rules answered
    python -m benchmarks.wiring.silence --only hf/bert hf/git    check these again (names, or prefixes of names)
    python -m benchmarks.wiring.silence --stale --workers 2 --reports FOLDER     two at a time, and keep the reports
    python -m benchmarks.wiring.silence --reports FOLDER --replay                today's checks on the kept reports
    python -m benchmarks.wiring.silence --render     only fill docs/lab-notes/wiring.md

The measured step and the probes run, because they are all that the wiring checks read; the rehearsal does not. Each
architecture is built a second time in memory that is filled with NaN. Each answer states which rules gave it, as a hash
of their source. Checks are functions of a report's profile, so after a change of checks alone, `--replay` answers in
minutes what takes the sweep hours; a report by other readings is left out and has to be asked again. Results:
benchmarks/results/wiring_silence.json.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result_files import ROOT, Results, fill_file, load, save, table
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.collection import SOURCES, names
from benchmarks.zoo.measure import Cell, error_location, error_text, plain_pass
from benchmarks.zoo.worker import measure_all
from leadline.checks import model_checks
from leadline.checks._diagnosis import check_case, collect_findings
from leadline.checks._probability import read_outlook
from leadline.errors import InputError
from leadline.readings.wiring.memory import Rebuild
from leadline.records import Finding
from leadline.records.report import Report
from leadline.tracer.inputs import unwrap

RESULTS = "wiring_silence"
# Heuristic: enough to recognize a message in a table.
MAX_MESSAGE_CHARACTERS = 300
EXPLANATIONS = {
    "timm/gcvit/gcvit_xxtiny": "true, a bug of the package: see above",
    "hf/gpt_neo": "true: GPT-Neo never scales its attention",
    "hf/granite_swa": "true of the default config, whose `attention_multiplier` is 1; released models set it",
    "hf/granitemoe_swa": "true of the default config, whose `attention_multiplier` is 1; released models set it",
    "hf/phimoe": "true of this step: SparseMixer has no gradient where no second expert is close to the chosen one",
    "hf/xlnet": "true of this batch: `XLNetLMHeadModel` does not shift labels, and without a permutation mask every "
    "position sees the token that it is asked for",
    "vit-pytorch/LeViT": "true: its four first convolutions follow each other without an activation; the LeViT of "
    "timm and that of transformers have a hard swish between them",
    "hf/trocr": "true: `TrOCRForCausalLM` does not shift labels, and the sweep gives it unshifted ones",
    "hf/mra": "true: without its CUDA kernel, `mra2_attention` returns zeros, so queries, keys and values are not used",
    "hf/swiftformer": "true, a bug of the package: see above",
    "hf/deepseek_v4": "true of this batch: the compressor needs 128 tokens for its first entry, and the sequences are "
    "shorter",
    "hf/flava": "true of this batch: it has no image, so the projection of the text for both is computed in vain",
}
"""What somebody who looked at the source of the architecture says about its findings."""
READINGS, CHECKS = "src/leadline/readings/wiring", "src/leadline/checks/model"


def rules(*folders: str) -> str:
    """Eight digits that change with the source in these folders; by default any wiring reading or model check."""
    digest = hashlib.sha256()
    for folder in folders or (READINGS, CHECKS):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def ask(architecture: Architecture, reports: Path | None = None) -> Cell:
    """The wiring findings, and which questions could not be asked; never raise an exception."""
    try:
        case = architecture.case()
        plain_pass(case)
        case.model.zero_grad()
    except Exception as error:  # a third-party package may raise anything
        return {"status": "not built", "reason": error_text(error)}
    cell: Cell = {"origin": architecture.origin, "model": type(unwrap(case.model)).__name__}
    try:
        report = check_case(case, rehearse=False, rebuild=Rebuild(make=architecture.case, seconds=0.0))
    except InputError as error:
        return {**cell, "status": "refused", "reason": error_text(error)}
    except Exception as error:  # a bug in Leadline, which this sweep looks for
        return {**cell, "status": "crashed", "reason": error_text(error), "where": error_location(error)}
    if reports is not None:
        report_file(reports, architecture.name).write_text(report.to_json())
    gaps = [f"{gap.what}: {gap.why}"[:MAX_MESSAGE_CHARACTERS] for gap in report.coverage.gaps]
    return {**cell, "status": "ran", **wiring_findings(report.findings), "not_asked": gaps}


def wiring_findings(findings: Sequence[Finding]) -> dict[str, Any]:
    wiring = [each for each in findings if each.code.startswith("D")]
    return {
        "findings": {
            each.name: f"{each.where}: {each.message}"[:MAX_MESSAGE_CHARACTERS]
            for each in wiring
            if each.severity != "info"
        },
        "notes": sorted({each.name for each in wiring if each.severity == "info"}),
    }


def report_file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '--')}.json"


def sweep(only: list[str], *, stale: bool, workers: int, reports: Path | None) -> None:
    stored = load(RESULTS)["cases"]
    # of the code that was loaded when the sweep began
    asked = {"rules": rules(), "readings": rules(READINGS)}
    # transformers last: it has three quarters of the names
    known = sorted(names(), key=lambda name: name.startswith("hf/"))
    if only:
        chosen = [name for name in known if any(name == each or name.startswith(f"{each}/") for each in only)]
    else:
        chosen = [name for name in known if name not in stored]
        if stale:
            chosen += [
                name for name in known if name in stored and stored[name].get("rules") != asked["rules"]
            ]
    for name, cell in measure_all(chosen, partial(ask, reports=reports), workers):
        keep(name, {**cell, **asked})


def replay(reports: Path) -> None:
    """Ask today's checks about the reports that today's readings made."""
    asked = {"rules": rules(), "readings": rules(READINGS)}
    stored = load(RESULTS)["cases"]
    for name, cell in stored.items():
        if cell["status"] != "ran":  # no rule had a part in this
            keep(name, {**cell, **asked})
            continue
        file = report_file(reports, name)
        if cell.get("readings") != asked["readings"] or not file.exists():
            print(f"{name:40} left out: no report by today's readings", flush=True)
            continue
        profile = Report.from_json(file.read_text()).profile
        findings = collect_findings(model_checks(), profile.shown, read_outlook(profile))
        keep(name, {**cell, **wiring_findings(findings), **asked})


def keep(name: str, cell: Cell) -> None:
    results = load(RESULTS)
    results["cases"][name] = cell
    save(RESULTS, results)
    said = ", ".join(cell.get("findings", ())) or cell.get("reason", "")
    print(f"{name:40} {cell['status']:10} {said[:90]}", flush=True)


STATUSES = ("ran", "refused", "crashed", "too slow", "not built")


def render(results: Results) -> str:
    """The counts by package, and every finding at warning or above."""
    cases = results["cases"]
    by_source = {
        source: [cell for name, cell in cases.items() if name.startswith(f"{source}/")] for source in SOURCES
    }
    versions = Counter(cell.get("rules", "before the rules were recorded") for cell in cases.values())
    asked = ", ".join(f"{count} by {version}" for version, count in versions.most_common())
    counts = f"Answers by version of the rules: {asked}.\n\n" + table(
        ["names begin with", "tried", *STATUSES, "silent"],
        [_count_row(source, cells) for source, cells in (*by_source.items(), ("**all**", [*cases.values()]))],
    )
    warned = [
        [f"`{name}`", finding, text, EXPLANATIONS.get(name, "not explained")]
        for name, cell in sorted(cases.items())
        for finding, text in cell.get("findings", {}).items()
    ]
    return (
        f"{counts}\n\n{table(['architecture', 'finding', 'message', 'judged by hand'], warned)}"
        if warned
        else counts
    )


def _count_row(source: str, cells: list[Cell]) -> list[str]:
    states = [sum(cell["status"] == each for cell in cells) for each in STATUSES]
    silent = sum(cell["status"] == "ran" and not cell["findings"] for cell in cells)
    return [source, *map(str, (len(cells), *states, silent))]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiring.silence")
    parser.add_argument("--only", nargs="+", default=[], help="names of architectures, or prefixes")
    parser.add_argument("--stale", action="store_true", help="then check again what other rules answered")
    parser.add_argument("--workers", type=int, default=1, help="architectures at a time")
    parser.add_argument("--reports", type=Path, help="folder in which the reports are kept")
    parser.add_argument("--replay", action="store_true", help="only run today's checks on the kept reports")
    parser.add_argument("--render", action="store_true", help="only fill the page")
    options = parser.parse_args(arguments)
    if options.replay and options.reports is None:
        parser.error("--replay needs --reports FOLDER, the folder in which a sweep kept its reports")
    if options.reports is not None:
        options.reports.mkdir(parents=True, exist_ok=True)
    if options.replay:
        replay(options.reports)
    elif not options.render:
        sweep(options.only, stale=options.stale, workers=options.workers, reports=options.reports)
    fill_file(ROOT / "docs" / "lab-notes" / "wiring.md", RESULTS, render(load(RESULTS)))


if __name__ == "__main__":
    main(sys.argv[1:])
