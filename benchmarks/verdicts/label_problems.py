"""Label every problem of the benchmark by training it; stops and resumes at any time.

    python -m benchmarks.verdicts.label_problems [--most N] [--seed 40]

A different seed draws other problems from the same recipes. They are for calibration only and are stored in a
separate file.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.result_files import load, save
from benchmarks.verdicts.cases import label_file, label_to_json
from benchmarks.verdicts.problem_sample import SEED, generate
from benchmarks.verdicts.truth import find_truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10**9, help="label at most this many now")
    parser.add_argument("--seed", type=int, default=SEED, help="which sample of the recipes")
    options = parser.parse_args()
    left, name = options.most, label_file(options.seed)
    torch.set_num_threads(1)
    results = load(name)
    for problem in generate(options.seed):
        if left and problem.key not in results["cases"]:
            truth = find_truth(problem)
            results["cases"][problem.key] = label_to_json(truth)
            save(name, results)
            print(problem.key, problem.cause, truth.label, truth.progress, truth.seconds, flush=True)
            left -= 1


if __name__ == "__main__":
    main()
