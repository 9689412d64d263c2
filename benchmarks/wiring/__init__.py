"""Planted wiring bugs: small training programs of many kinds, each with a mistake that `leadline.check` must name.

    python -m benchmarks.wiring list                   the programs and their bugs
    python -m benchmarks.wiring check                  check what has no stored answer; resumable
    python -m benchmarks.wiring check --again          check everything again
    python -m benchmarks.wiring check --half held-out  only one half (default: calibration)
    python -m benchmarks.wiring missed --part sixth-set    check its misses and twins again, without the rehearsal
    python -m benchmarks.wiring misses                 wrong answers of the calibration half
    python -m benchmarks.wiring cost                   time and memory of the probes in plain training steps
    python -m benchmarks.wiring known --packages DIR   published models with known bugs; see `known.py`
    python -m benchmarks.wiring render                 write the tables of docs/lab-notes/wiring.md

Each program in `problems/` is written in the style of a different author and takes the name of a bug; without one it is
the healthy twin. A bug states the findings that name it and words that the finding must contain: the tensor, the axis,
the position or the module. Fixed before the first check:

- A bug is *named* if a finding with an expected name is reported at warning or above. For bugs that may be meant like
  this (an unused input), a note is enough.
- It is *located* if that finding also contains all words of the bug, as its place or in its message.
- A healthy twin is *silent* if no finding of family D is at warning or above.
- The verdict is *right* if it is not "trains" for a bug that is not only worth a note.

One bit of the SHA-256 of a program's name decides its half, so a bug and its twin are in the same half. THE HALF CALLED
"held out" MUST NOT BE LOOKED AT while readings and checks are changed: `misses` shows the calibration half only.

The baseline is the same check with `probes=False`: what the trace, the ledger and the rehearsal say on their own.
"""
