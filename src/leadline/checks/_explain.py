"""Which finding explains which: symptoms are put under their cause, so that a report names one root."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leadline.checks._check import Check
from leadline.records import Finding, badness


def explained(findings: Sequence[Finding], rules: Sequence[Check]) -> tuple[Finding, ...]:
    """The findings, each with the code of the one that explains it best; "" for a root.

    A rule says which codes it explains; it does where both findings are about some block in common, or one of them
    about no block in particular. Of several, the one that is a root itself comes first, then the more severe. A note
    explains nothing that is more than a note.
    """
    explains = {rule.code: set(rule.explains) for rule in rules}
    causes = [[a for a in findings if _explains(a, b, explains)] for b in findings]
    roots = {id(b) for b, found in zip(findings, causes, strict=True) if not found}
    return tuple(
        msgspec.structs.replace(
            b,
            explained_by=min(found, key=lambda a: (id(a) not in roots, -badness(a.severity), a.code)).code
            if found
            else "",
        )
        for b, found in zip(findings, causes, strict=True)
    )


def _explains(cause: Finding, effect: Finding, explains: dict[str, set[str]]) -> bool:
    if effect.code not in explains.get(cause.code, ()):
        return False
    if cause.severity == "info" and effect.severity != "info":
        return False
    if cause.layers is None or effect.layers is None:
        return True
    return cause.layers[0] <= effect.layers[1] and effect.layers[0] <= cause.layers[1]
