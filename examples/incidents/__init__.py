"""Ten reported failures at small scale: each is diagnosed by name, repaired, and trained before and after.

docs/tutorial/incidents.md shows them; `python -m benchmarks.incidents` writes that page.
"""

ORDER = (
    "post_norm_without_warm_up",
    "twenty_four_layers",
    "deepnorm_on_the_branch",
    "cloned_encoder_layers",
    "batch_norm_without_skips",
    "half_precision_attention",
    "decayed_norms",
    "root_scaled_branches_with_adam",
    "relu_ended_branches",
    "small_embeddings",
)
