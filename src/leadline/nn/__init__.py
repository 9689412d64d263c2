"""Building blocks that train deep: residual schemes, initialization, Transformers, MLPs, ResNets; needs only torch."""

from leadline.nn import init
from leadline.nn.clipping import StableAdamW, adaptive_clip_, clip_norm_, z_loss
from leadline.nn.conv import ResNet
from leadline.nn.encoder_decoder import EncoderDecoder
from leadline.nn.language import LanguageModel
from leadline.nn.mlp import MLP
from leadline.nn.optim import Base, param_groups
from leadline.nn.options import Options
from leadline.nn.residual import Residual, profile_admin_
from leadline.nn.schedules import schedule
from leadline.nn.scheme import Layout, Place, Scheme
from leadline.nn.schemes import SCHEMES, recommended
from leadline.nn.transformer import Encoder

__all__ = [
    "MLP",
    "SCHEMES",
    "Base",
    "Encoder",
    "EncoderDecoder",
    "LanguageModel",
    "Layout",
    "Options",
    "Place",
    "ResNet",
    "Residual",
    "Scheme",
    "StableAdamW",
    "adaptive_clip_",
    "clip_norm_",
    "init",
    "param_groups",
    "profile_admin_",
    "recommended",
    "schedule",
    "z_loss",
]
