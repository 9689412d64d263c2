"""Softmax and attention."""

from leadline.ops.family import Family, words

ATTENTION = Family(kind="attention", names=words("scaled_dot_product_attention"))
SOFTMAX = Family(
    kind="softmax", names=words("softmax log_softmax softmin gumbel_softmax sparsemax safe_softmax")
)
