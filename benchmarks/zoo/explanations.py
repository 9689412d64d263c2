"""Explanations, with evidence, of every finding at warning or above on an architecture as published.

A test requires an entry for every such finding of the sweep, and a finding for every entry.
"""

from __future__ import annotations

EXPLAINED: dict[str, dict[str, str]] = {
    "hf/mobilevit": {
        "W603": "Real. The package draws the gains of its batch norms from the same narrow normal distribution as the "
        "weights instead of initializing them with one. Each norm therefore shrinks the signal, until the next norms "
        "divide by little but their eps. Trained from this initialization, the loss does not move; with gains of one "
        "it falls immediately (table above).",
        "U525": "A consequence of these gains: the trial steps, too, leave the loss where it was.",
        "U530": "A consequence of these gains; Adam at 0.01, the reference of this finding, overcomes it.",
        "U531": "The same trial steps, judged as a whole.",
    },
    "hf/mobilenet_v1": {
        "F110": "Real, and the cause. The default configuration drops 99.9 % of the classifier's input and multiplies "
        "the rest by 1000: the loss jumps between 0 and 25 from step to step (table above). Without this dropout, the "
        "same network fits the batch in ten steps.",
        "U501": "A consequence, listed under its cause: the dropout changes the loss more than any step does.",
        "B205": "Real: 27 consecutive batch norms have no skip, and the gradient grows as theory predicts. It does not "
        "prevent training: without the dropout, the network trains.",
        "W603": "Real: weights with standard deviation 0.02 leave a variance below the eps of 0.001 at some norms. "
        "It does not prevent training either.",
    },
    "vit-pytorch/LeViT": {
        "F106": "Real. The gain of the batch norm after every attention starts at zero, even where the attention has "
        "no skip around it (the two attentions that halve the resolution). After the first of these, all images are "
        "the same, and no gradient passes. Training ends at 0.562, the entropy of the four labels, which is the lowest "
        "loss of a constant output. With gains of one, the loss falls to zero.",
    },
    "torch_geometric/EdgeCNN": {
        "F106": "Real, but training overcomes it. PyTorch's default initialization in seven plain ReLU layers (I302) "
        "and a maximum over neighbors make all nodes equal to 0.3 %. The loss hardly moves for 30 steps; after 100 "
        "steps it has fallen. The warning is right about the initialization and too pessimistic about the result.",
    },
    "hf/mra": {
        "B203": "Real on a CPU. The attention exists only as a CUDA kernel. Without it the package returns zeros, so "
        "queries and keys get no gradient. The rest of the network trains.",
    },
    "hf/deepseek_v4": {
        "B203": "Real, and intended. The indexer selects keys by their rank, which has no gradient; it needs a loss of "
        "its own.",
    },
}


def explanation(name: str, code: str) -> str:
    """Return why this architecture has this finding, or "" if there is no explanation."""
    return EXPLAINED.get(name, {}).get(code, "")
