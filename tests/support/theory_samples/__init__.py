"""Sample cases by op name: what each moment rule is compared with, and why some rules are not."""

from tests.support.theory_samples.elements import ELEMENTS
from tests.support.theory_samples.layers import LAYERS
from tests.support.theory_samples.layout import LAYOUT, REFUSED
from tests.support.theory_samples.losses import LOSSES

__all__ = ["CASES", "REFUSED", "WITHOUT"]

_INNER = "PyTorch records the function around it"
_SAME = "returns its operand itself on a CPU, so that no op is on record"
CASES = {**ELEMENTS, **LAYERS, **LAYOUT, **LOSSES}
WITHOUT = {
    "cross_entropy_loss": _INNER,
    "nll_loss_nd": _INNER,
    "nll_loss2d": _INNER,
    "upsample": _INNER,
    "slice": _INNER,
    "cuda": "no such device in the tests",
    "cpu": _SAME,
    "real": _SAME,
    "resolve_conj": _SAME,
    "scaled_dot_product_attention": "test_attention.py",
}
