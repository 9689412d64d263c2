"""The first hour of a new user, played as a benchmark: a small GPT broken on purpose, and foreign training programs.

    python -m benchmarks.first_hour truth             train the variants without a stored outcome; resumable
    python -m benchmarks.first_hour check             check every variant again, in both ways of passing the loss
    python -m benchmarks.first_hour check --only lr   only variants and programs whose name contains the text
    python -m benchmarks.first_hour programs          run the training programs again (Trainer, Lightning, VAE, ...)
    python -m benchmarks.first_hour misses            wrong or unequal verdicts of the calibration half
    python -m benchmarks.first_hour render            write the tables of docs/lab-notes/first-hour.md

The network is a character-level GPT on the text of Python's own documentation topics (`pydoc_data`), which every
machine with Python has. `variants.py` changes one thing at a time: a rate, an initialization, a dtype. Each
variant is called in two ways that compute the same: `model(idx, targets)` with the loss inside, as nanoGPT does, and
`model(idx)` with `loss(logits, targets)` outside.

Truth, fixed before any verdict was compared with it:

- A variant trains for `STEPS` (300) steps on fresh batches with its own optimizer, once per seed (three seeds). What is
  wrong with its data is wrong in its training batches only; it is evaluated on clean held-out text, in evaluation mode.
- Its share is the part of the unmodified network's gain that it recovers: (unigram - L) / (unigram - L_base). L is its
  held-out loss, `unigram` that of the best constant prediction, L_base that of the variant "base" (mean over seeds).
- "trains" if the share is at least 0.5, "poor" from 0.2 to 0.5, "fails" below 0.2 or if the loss is non-finite. The
  majority of the seeds decides. If the seeds disagree on whether it trains, the variant is shown but not counted.
- The verdict is right if it says "trains" for one that trains, and "poor" or "fails" for one that does not. "undecided"
  is always wrong.

Two naive baselines stand in the same table: eleven steps on one batch, and the loss fell by 5 %; or fell at all.

One bit of the SHA-256 of a variant's name decides its half. THE HALF CALLED "held out" MUST NOT BE LOOKED AT while
checks are changed: `misses` shows calibration variants only, and `check` prints names of that half only.
Of the other half, read the figures and nothing else.

Errors in the wiring (a missing causal mask, shifted labels) are not part of this benchmark: every one of them trains.
"""
