"""Run every claim of the articles with its own number of seeds: the figures of docs/lab-notes/claims.md.

    python -m benchmarks.lab            run claims without a result
    python -m benchmarks.lab S0-7 ...   run these again

The result goes to benchmarks/results/lab.json, which `leadline report` can read. It is saved after each claim, so the
script can be interrupted and resumed.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from benchmarks.result_files import RESULTS
from leadline import __version__
from leadline.lab.articles import code_order, find_code
from leadline.lab.claim import all_claims, run_claims
from leadline.records import Lab

FILE = RESULTS / "lab.json"


def stored() -> Lab:
    """Return the results so far."""
    if FILE.exists():
        return Lab.from_json(FILE.read_text())
    return Lab(leadline=__version__, torch=str(torch.__version__), experiments=())


def keep(lab: Lab) -> None:
    """Replace the file in one step, with one entry per line so that changes are readable."""
    fresh = FILE.with_suffix(".part")
    fresh.write_text(json.dumps(json.loads(lab.to_json()), indent=1, ensure_ascii=False) + "\n")
    os.replace(fresh, FILE)


def main(again: list[str]) -> None:
    torch.set_num_threads(1)
    codes = [each.code for each in all_claims()]
    wanted = {find_code(code, codes) for code in again}
    known = {each.code: each for each in stored().experiments if each.code in codes}
    for each in all_claims():
        if each.code not in wanted and (wanted or each.code in known):
            continue
        found = run_claims([each], __version__)
        known[each.code] = found.experiments[0]
        print(each.code, known[each.code].verdict, f"{known[each.code].seconds:.1f} s")
        ordered = tuple(sorted(known.values(), key=lambda one: code_order(one.code)))
        keep(Lab(leadline=found.leadline, torch=found.torch, experiments=ordered))


if __name__ == "__main__":
    main(sys.argv[1:])
