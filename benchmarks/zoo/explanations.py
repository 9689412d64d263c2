"""Explains each finding at warning or above on a stock architecture, with the evidence.

A test requires an entry for every such finding of the sweep, and a finding for every entry.
"""

from __future__ import annotations

EXPLAINED: dict[str, dict[str, str]] = {
    "hf/mobilevit": {
        "W603": "Real. The package draws the gains of its batch norms from the same narrow normal law as the "
        "weights instead of starting them at one, so that each norm shrinks the signal, until the eps of "
        "the next norms is all that is left. Trained from this start the loss does not move; with gains "
        "of one it falls at once (table above).",
    },
    "hf/mobilenet_v1": {
        "F110": "Real, and the cause. The stock configuration drops 99.9 % of what the classifier reads and multiplies "
        "the rest by 1000: the loss jumps between 0 and 25 from step to step (table above). Without that dropout the "
        "same network is fitted in ten steps.",
        "U501": "A consequence, put under its cause: no step keeps its promise while dropout throws the loss about.",
        "B205": "Real: 27 batch norms in a row without a skip, whose gradient grows as theory says. Not what stops it: "
        "without the dropout it trains.",
        "W603": "Real: weights of 0.02 leave a variance below the eps of 0.001 in front of some norms. Not what stops "
        "it either.",
    },
    "vit-pytorch/LeViT": {
        "F106": "Real. The gain of the batch norm behind every attention starts at zero, also where the attention"
        " has no skip around it (the two that halve the resolution): behind the first of these every "
        "picture is the same, and no gradient passes. Training ends at 0.562, the entropy of its four "
        "labels, which is the best that can be had without looking at the pictures. With gains of one it "
        "falls to zero.",
    },
    "torch_geometric/EdgeCNN": {
        "F106": "Real, and overcome. Torch's default initialization in seven plain ReLU layers (I302) and a "
        "maximum over neighbors leave nodes alike to 0.3 %. For 30 steps the loss hardly moves; by 100 "
        "it has fallen. The warning is right about the start and too dark about the end.",
    },
    "hf/mra": {
        "B203": "Real, on a processor. Its attention exists as a CUDA kernel only; without it the package returns"
        " zeros, and queries and keys get no gradient. The rest trains.",
    },
    "hf/deepseek_v4": {
        "B203": "Real, and meant. The indexer picks keys by their rank, through which no gradient passes; it "
        "needs a loss of its own.",
    },
}


def explanation(name: str, code: str) -> str:
    """Return why this architecture has this finding, or "" if there is no explanation."""
    return EXPLAINED.get(name, {}).get(code, "")
