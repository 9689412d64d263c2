"""rescheme: another residual scheme for blocks built of leadline.nn."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import family, is_fresh, modules_of
from leadline.nn.residual import Residual
from leadline.records import Edit

CHOICES = {
    "adam": ("residual-linear", "deepnorm-adam", "keel", "pre", "sandwich"),
    "sgd": ("residual-sqrt", "deepnorm", "pre", "sandwich"),
}


@fix(
    name="rescheme",
    answers=(
        "R4",
        "I305",
        "F101",
        "F106",
        "B201",
        "B202",
        "U501",
        "U502",
        "U503",
        "U504",
        "U509",
        "I306",
        "U523",
        "I308",
        "N70",
        "F107",
    ),
    reach="architecture",
    since="0.2",
)
def rescheme(patient: Patient) -> Iterator[Plan]:
    r"""Wires the residual blocks of `leadline.nn` by another row of its scheme table.

    ## What it does
    Every `leadline.nn.Residual` of the model is replaced by one with the same branch and another scheme: norms in
    other places, other scales on skip and branch, the branch's weights drawn anew as that row says. Proposed for
    Adam: `residual-linear` (pre-norm, branches times $1/S$ for $S$ sub-layers), `deepnorm-adam`, `keel`, `pre`,
    `sandwich` (Peri-LN without its norm on the embedding); for SGD: `residual-sqrt`, `deepnorm`, `pre`, `sandwich`.
    DeepNorm with its factors the wrong way round is repaired by the same.

    ## Why it works
    These rows keep what one step does to the function free of depth for the optimiser they are proposed for
    (`benchmarks/update_exponents.py`).

    ## What it costs
    New initial weights. Norms that a row does not use are dropped, with what they learned.

    ## When it does not help
    If the rate is wrong as well: change that too.

    ## References
    Dey et al., arXiv 2505.01618; Wang et al., arXiv 2203.00555; the table: `docs/reference/nn.md`.
    """
    found = [(path, module) for path, module in modules_of(patient, Residual) if isinstance(module, Residual)]
    if not found or not is_fresh(patient):
        return
    for rank, name in enumerate(CHOICES[family(patient)]):
        if all(module.scheme.name == name for _, module in found):
            continue
        edits = tuple(Edit(action="scheme", where=path, options={"scheme": name}) for path, _ in found)
        was = found[0][1].scheme.name
        yield Plan(
            title=f"{len(found)} residual blocks from scheme {was} to {name}",
            edits=edits,
            promise=0.8 - rank / 10,
        )
