"""Label every problem of the benchmark by training it; stops and resumes at any time.

python -m benchmarks.verdicts.run [--most N]
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.store import load, save
from benchmarks.verdicts.cases import LABEL_FILE, label_to_json
from benchmarks.verdicts.generate import generate
from benchmarks.verdicts.truth import find_truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10**9, help="label at most this many now")
    left = parser.parse_args().most
    torch.set_num_threads(1)
    results = load(LABEL_FILE)
    for problem in generate():
        if left and problem.key not in results["cases"]:
            found = find_truth(problem)
            results["cases"][problem.key] = label_to_json(found)
            save(LABEL_FILE, results)
            print(problem.key, problem.cause, found.label, found.progress, found.seconds, flush=True)
            left -= 1


if __name__ == "__main__":
    main()
