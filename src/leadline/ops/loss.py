"""Losses."""

from leadline.ops.family import Family, words

LOSS = Family(
    kind="loss",
    names=words(
        """cross_entropy cross_entropy_loss nll_loss nll_loss_nd nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss ctc_loss
        cosine_embedding_loss margin_ranking_loss hinge_embedding_loss triplet_margin_loss multi_margin_loss
        multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss linear_cross_entropy"""
    ),
)
