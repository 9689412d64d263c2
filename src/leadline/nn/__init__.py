"""Building blocks that train deep: residual schemes, initialisation, Transformers, MLPs, ResNets. Needs torch only."""

from leadline.nn import init
from leadline.nn.language import LanguageModel
from leadline.nn.optim import Base, param_groups
from leadline.nn.options import Options
from leadline.nn.residual import Residual
from leadline.nn.scheme import Layout, Place, Scheme
from leadline.nn.schemes import SCHEMES, recommended
from leadline.nn.transformer import Encoder

__all__ = [
    "SCHEMES",
    "Base",
    "Encoder",
    "LanguageModel",
    "Layout",
    "Options",
    "Place",
    "Residual",
    "Scheme",
    "init",
    "param_groups",
    "recommended",
]
