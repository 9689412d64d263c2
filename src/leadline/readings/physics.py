"""The depth scale of a real network, off theory's prediction for the blocks of its depth axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import Block, DepthScale, Stream

REACH = 7.0  # e-folds of squared gradient; calibrated by benchmarks/reach.py: farther, none learned with SGD
FEWEST = 4  # blocks; ours: with fewer, one odd layer cannot be told from a law


def read_depth_scale(blocks: Sequence[Block], streams: Sequence[Stream]) -> DepthScale | None:
    r"""$\chi$, the geometric mean a block of the predicted power of the gradient, seen in its own direction.

    Power, the sum of squares, is what a layer of another width preserves. Without the head. A stack counts as critical
    if it changes by less than one e-fold over its own depth: no measurement at this depth could tell it from one. None
    if fewer than `FEWEST` blocks are predicted. `q` is what theory predicts at the last block.
    """
    own = [block for block in blocks if block.stream == 0]
    body = own[:-1] if streams and streams[0].joins is None else own
    powers = [  # logarithms: over a deep stack the powers themselves may differ by more than a float holds
        math.log(block.backward_ms_predicted) + math.log(block.elements)
        for block in body
        if block.backward_ms_predicted is not None and 0 < block.backward_ms_predicted < math.inf
    ]
    if len(powers) < FEWEST:
        return None
    folds = powers[0] - powers[-1]
    each = folds / (len(powers) - 1)
    xi = math.inf if each == 0 else 1 / abs(each)
    return DepthScale(
        chi=math.exp(each),
        xi=xi,
        phase="critical" if abs(folds) < 1 else "ordered" if folds < 0 else "chaotic",
        trainable_depth=REACH * xi,
        q=body[-1].forward_ms_predicted,
    )
