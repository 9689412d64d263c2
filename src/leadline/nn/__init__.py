"""Building blocks that train deep: residual schemes, initialization, Transformers, MLPs, ResNets; needs only torch.

Each name is imported on first use, because `leadline.check` reads the activations and no other block.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.nn import init
    from leadline.nn.clipping import StableAdamW, adaptive_clip_, clip_norm_, z_loss
    from leadline.nn.conv import ResNet
    from leadline.nn.encoder_decoder import EncoderDecoder
    from leadline.nn.experts import MixtureOfExperts, balance_loss
    from leadline.nn.language import LanguageModel
    from leadline.nn.mlp import MLP
    from leadline.nn.optim import Base, MuonGroups, param_groups
    from leadline.nn.options import Options
    from leadline.nn.residual import Residual, profile_admin_
    from leadline.nn.schedules import schedule
    from leadline.nn.scheme import Layout, Place, Scheme
    from leadline.nn.schemes import SCHEMES, recommended
    from leadline.nn.transformer import Encoder

_MODULES = {
    "StableAdamW": "leadline.nn.clipping",
    "adaptive_clip_": "leadline.nn.clipping",
    "clip_norm_": "leadline.nn.clipping",
    "z_loss": "leadline.nn.clipping",
    "ResNet": "leadline.nn.conv",
    "EncoderDecoder": "leadline.nn.encoder_decoder",
    "MixtureOfExperts": "leadline.nn.experts",
    "balance_loss": "leadline.nn.experts",
    "LanguageModel": "leadline.nn.language",
    "MLP": "leadline.nn.mlp",
    "Base": "leadline.nn.optim",
    "MuonGroups": "leadline.nn.optim",
    "param_groups": "leadline.nn.optim",
    "Options": "leadline.nn.options",
    "Residual": "leadline.nn.residual",
    "profile_admin_": "leadline.nn.residual",
    "schedule": "leadline.nn.schedules",
    "Layout": "leadline.nn.scheme",
    "Place": "leadline.nn.scheme",
    "Scheme": "leadline.nn.scheme",
    "SCHEMES": "leadline.nn.schemes",
    "recommended": "leadline.nn.schemes",
    "Encoder": "leadline.nn.transformer",
}

__all__ = [
    "MLP",
    "SCHEMES",
    "Base",
    "Encoder",
    "EncoderDecoder",
    "LanguageModel",
    "Layout",
    "MixtureOfExperts",
    "MuonGroups",
    "Options",
    "Place",
    "ResNet",
    "Residual",
    "Scheme",
    "StableAdamW",
    "adaptive_clip_",
    "balance_loss",
    "clip_norm_",
    "init",
    "param_groups",
    "profile_admin_",
    "recommended",
    "schedule",
    "z_loss",
]


def __getattr__(name: str) -> Any:
    if name == "init":
        return import_module("leadline.nn.init")
    if name not in _MODULES:
        raise AttributeError(f"module 'leadline.nn' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
