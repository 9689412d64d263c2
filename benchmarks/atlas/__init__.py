"""The atlas: kinds of networks times flaws, each with its truth by training; whole kinds are held out.

    python -m benchmarks.atlas truth              train every problem without a stored outcome; resumable
    python -m benchmarks.atlas check              ask Leadline about every problem without a stored answer
    python -m benchmarks.atlas check --one-batch  the same with a single batch
    python -m benchmarks.atlas fit                fit the probability to the calibration families
    python -m benchmarks.atlas repair             search for repairs of problems that failed
    python -m benchmarks.atlas repair --healthy   the same for healthy networks, which are to be left alone
    python -m benchmarks.atlas repair --again     repeat the searches that were made
    python -m benchmarks.atlas misses             wrong verdicts on the calibration families
    python -m benchmarks.atlas score              figures of both halves, beside the naive baselines
    python -m benchmarks.atlas render             write the tables of the docs

A *family* is a kind of network with its task and a training recipe that works (`families/`). A *flaw* changes one
thing about any family (`flaws.py`): a rate, an initialization, what the optimizer holds, what the loss rewards. Some
flaws are harmless on purpose. A *problem* is a family with a flaw; `problems.py` draws which flaws each family gets.

Truth, fixed before any verdict was compared with it:

- A problem trains with its own optimizer on fresh batches for the steps of its family, once per seed (two seeds).
- Its progress is the part of the healthy network's gain that it recovers: (score - constant) / (healthy - constant).
  The score is the accuracy for classes, the share of explained variance for numbers, and minus the loss where a family
  has a loss of its own. The constant is the score of the best output that ignores the inputs. All three are measured in
  evaluation mode on batches that were not trained on. The score reads the outputs, so a flaw in the loss cannot hide.
- A problem *reaches* if its progress is at least 0.6 with every seed, *fails* if it is below 0.4 with every seed, and
  is *borderline* otherwise: listed, but not counted.
- A verdict is right if it says "trains" for one that reaches, and "poor" or "fails" for one that fails.

The SHA-256 of a family's name decides its half. THE FAMILIES CALLED "held out" MUST NOT BE LOOKED AT while rules are
changed: `misses` shows calibration families only. Of the other half, read the figures and nothing else.
"""
