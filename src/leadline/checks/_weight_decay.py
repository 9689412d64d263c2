"""What the rules on weight decay share: who is decayed, and small made-up profiles with an optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from leadline.checks._examples import geometric
from leadline.records import EpsSite, Optimizer, ParamGroup, Profile, ScaledTensor, Symmetry


def decayed(profile: Profile) -> Iterator[tuple[ParamGroup, ScaledTensor]]:
    """Every tensor that the optimiser decays, with its group."""
    if profile.optimizer is None or profile.symmetry is None:
        return
    tensors = {each.name: each for each in profile.symmetry.tensors}
    for group in profile.optimizer.groups:
        if group.weight_decay > 0:
            yield from ((group, tensors[name]) for name in group.parameters if name in tensors)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few of a list of names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def example(
    tensor: ScaledTensor, *, optimizer: str = "AdamW", decay: float = 0.1, eps: Sequence[EpsSite] = ()
) -> Profile:
    """A stack with one tensor of interest, trained at rate 0.001."""
    group = ParamGroup(
        parameters=(tensor.name,), lr=1e-3, weight_decay=decay, options={"betas": [0.9, 0.999], "eps": 1e-8}
    )
    symmetry = Symmetry(
        generators=(), tensors=(tensor,), decayed=decay > 0, penalty=1.0, least=0.5, eps=tuple(eps), held=()
    )
    made = Optimizer(name=optimizer, groups=(group,), steps=0)
    return replace(geometric(blocks=4), optimizer=made, symmetry=symmetry)


WEIGHT = ScaledTensor(name="layers.0.weight", kind="matrix", count=4096, norm=8.0, grad_norm=0.01)
