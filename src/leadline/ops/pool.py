"""Reductions over positions or features."""

from leadline.ops.family import Family, words

POOL = Family(
    kind="pool",
    names=words(
        """avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
        max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d
        adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d
        fractional_max_pool2d max_unpool2d interpolate upsample grid_sample"""
    ),
)
REDUCE = Family(
    kind="reduce",
    names=words(
        """mean sum prod var std var_mean std_mean amax amin max min median logsumexp norm vector_norm cumsum cumprod
        diff nanmean nansum cdist pairwise_distance cosine_similarity all any is_all_true is_any_true segment_reduce"""
    ),
)
