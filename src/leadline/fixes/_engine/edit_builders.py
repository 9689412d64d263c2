"""Build the edits that several fixes propose, with rounded numbers."""

from __future__ import annotations

from leadline.fixes._engine.lookup import Packing
from leadline.records import Edit
from leadline.records.repair import Option


def rounded(value: float) -> float:
    """The value to four significant digits, so that the generated code shows exactly what the edit does."""
    return float(f"{value:.4g}")


def draw_edit(where: str, kind: str, size: float, *, packed: int = 1) -> Edit:
    """Draw the parameter `where` anew; each of its `packed` equal parts is drawn separately."""
    options: dict[str, Option] = {"kind": kind, "size": rounded(size)}
    return Edit(action="draw", where=where, options=options | ({"packed": packed} if packed > 1 else {}))


def scale_edit(where: str, factor: float, packing: Packing | None = None) -> Edit:
    """Multiply a parameter, or only the parts `packing` of it."""
    options: dict[str, Option] = {"factor": rounded(factor)}
    if packing is not None:
        options |= {"parts": packing.parts, "dim": packing.dim, "first": packing.first, "last": packing.last}
    return Edit(action="scale", where=where, options=options)


def scale_output_edit(where: str, factor: float, *, learned: int = 0) -> Edit:
    """Multiply the output of a module; with `learned` numbers by a parameter of that size that starts at `factor`."""
    return Edit(action="scale-output", where=where, options={"factor": rounded(factor), "learned": learned})


def activation_edit(where: str, calls: str, to: str, *, own_module: bool) -> Edit:
    """Replace the activation `calls`: the module itself if it is one, else the calls in the module's code."""
    if own_module:
        return Edit(action="swap", where=where, options={"to": to})
    return Edit(action="reroute", where=where, options={"calls": calls, "to": to})
