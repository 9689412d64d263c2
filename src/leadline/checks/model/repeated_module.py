"""D927: one module object in several places."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import with_parts
from leadline.records import Profile, RepeatedModule


def _example(*paths: str) -> Profile:
    return with_parts(
        repeated=(RepeatedModule(paths=paths, type="Block", parameters=4096, is_chained=True),)
        if len(paths) > 1
        else ()
    )


@check(
    code="D927",
    name="repeated-module",
    since="0.1.0",
    sick=_example("layers.0", "layers.1", "layers.2"),
    healthy=_example("layers.0"),
)
def repeated_module(profile: Profile) -> Iterator[Symptom]:
    r"""Several entries of a list of layers are the same object, so they share all their weights.

    ## What it measures
    Entries of a `ModuleList`, `Sequential` or other container that are one object with parameters. It is a warning if
    the entries run one after the other, and a note if they run side by side. Two attributes of a module that are one
    object (`self.conv3 = self.conv2`) are a note if one use reads what the other computes.

    ## Why it hurts
    `nn.ModuleList([layer] * 6)` has the parameters of one layer, not of six. The stack computes a power of one layer,
    and the optimizer adds up the gradients of all its uses.

    ## When it is wrong
    ALBERT and Universal Transformers share the weights of their layers on purpose; a loop over one layer says so more
    clearly than a list of references. Heads that are shared between decoder layers run side by side and are a note.

    ## References
    PyTorch documentation, `torch.nn.ModuleList`; Lan et al., "ALBERT", 2020 (sharing on purpose).
    """
    for module in profile.parts.repeated if profile.parts else ():
        first, count = module.paths[0], len(module.paths)
        kind = module.type.rpartition(".")[2]
        places = f"entries of `{first.rpartition('.')[0]}`" if module.is_listed else "attributes"
        yield Symptom(
            severity="warning" if module.is_chained and module.is_listed else "info",
            where=first,
            message=f"{count} {places} are one {kind} with {module.parameters} parameters, not {count}: "
            f"{first} ... {module.paths[-1]}",
            action=f"Build each of them anew, for example `nn.ModuleList([{kind}(...) for _ in range({count})])`.",
            evidence={"entries": float(count), "parameters": float(module.parameters)},
        )
