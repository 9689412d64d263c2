"""Samples of losses: the number itself, and the gradient it starts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.theory_samples.case import MANY, Case

ROWS, CLASSES = 2048, 64
GENERATOR = torch.Generator().manual_seed(11)
LABELS = torch.randint(CLASSES, (ROWS,), generator=GENERATOR)
PIXELS = torch.randint(CLASSES, (8, 16, 16), generator=GENERATOR)
LOG_NORMAL = 0.02  # shares of 64 classes are not quite log-normal: they sum to one
LOGITS = ((ROWS, CLASSES),)
PAIR = ((ROWS, CLASSES),) * 2
BITS = torch.randint(2, (ROWS, CLASSES), generator=GENERATOR).float()
SHARES = torch.randn(ROWS, CLASSES, generator=GENERATOR).softmax(-1)

LOSSES: dict[str, Case] = {
    "cross_entropy": Case(lambda x: F.cross_entropy(x, LABELS), LOGITS, draws=MANY),
    "nll_loss": Case(lambda x: F.nll_loss(x, LABELS), LOGITS, mean=-4.0, draws=MANY),
    "mse_loss": Case(F.mse_loss, PAIR, mean=0.5, draws=MANY),
    "l1_loss": Case(F.l1_loss, PAIR, mean=0.5, draws=MANY),
    "smooth_l1_loss": Case(lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), PAIR, mean=0.5, draws=MANY),
    "huber_loss": Case(lambda x, y: F.huber_loss(x, y, delta=0.5), PAIR, mean=0.5, draws=MANY),
    "binary_cross_entropy_with_logits": Case(
        lambda x: F.binary_cross_entropy_with_logits(x, BITS), LOGITS, mean=0.5, draws=MANY
    ),
    "kl_div": Case(
        lambda x: F.kl_div(x, SHARES, reduction="batchmean"), LOGITS, mean=-8.0, draws=MANY, beyond=LOG_NORMAL
    ),
    "cross_entropy smoothed": Case(
        lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.2), LOGITS, draws=MANY
    ),
    "cross_entropy summed": Case(lambda x: F.cross_entropy(x, LABELS, reduction="sum"), LOGITS, draws=MANY),
    "cross_entropy images": Case(lambda x: F.cross_entropy(x, PIXELS), ((8, CLASSES, 16, 16),), draws=MANY),
    "mse_loss summed": Case(lambda x, y: F.mse_loss(x, y, reduction="sum"), PAIR, mean=0.5, draws=MANY),
}
