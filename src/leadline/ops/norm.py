"""Normalisations."""

from leadline.ops.family import Family, words

NORM = Family(
    kind="norm",
    names=words(
        """layer_norm native_layer_norm rms_norm batch_norm native_batch_norm cudnn_batch_norm group_norm instance_norm
        local_response_norm normalize weight_norm weight_norm_interface"""
    ),
)
