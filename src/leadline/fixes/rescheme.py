"""The fix rescheme: another residual scheme for blocks built of leadline.nn."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import family, is_fresh, modules_of
from leadline.records import Edit

SCHEMES = {
    "adam": ("residual-linear", "deepnorm-adam", "keel", "pre", "sandwich"),
    "sgd": ("residual-sqrt", "deepnorm", "pre", "sandwich"),
}
"""Schemes to try by family of the optimizer, the most promising first."""


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
    since="0.1.0",
)
def rescheme(context: FixContext) -> Iterator[Plan]:
    r"""Rewires the residual blocks of `leadline.nn` by another row of its scheme table.

    ## What it does
    Every `leadline.nn.Residual` of the model is replaced by one with the same branch and another scheme: norms in other
    places, other scales on skip and branch, and the weights of the branch drawn as the scheme requires. Proposed for
    Adam: `residual-linear` (pre-norm, branches times $1/S$ for $S$ sub-layers), `deepnorm-adam`, `keel`, `pre`,
    `sandwich` (Peri-LN without its norm on the embedding); for SGD: `residual-sqrt`, `deepnorm`, `pre`, `sandwich`.
    The same edit repairs DeepNorm with its two factors exchanged.

    ## Why it works
    With these schemes, the effect of one step on the function does not depend on depth for the optimizer they are
    proposed for (`benchmarks/update_exponents.py`).

    ## What it costs
    New initial weights. Norms that a scheme does not use are dropped, with what they learned.

    ## When it does not help
    If the learning rate is wrong as well: change that too.

    ## References
    Dey et al., arXiv 2505.01618; Wang et al., arXiv 2203.00555; the table: `docs/reference/nn.md`.
    """
    from leadline.nn.residual import Residual  # torch-free start

    blocks = [(path, block) for path, block in modules_of(context, Residual) if isinstance(block, Residual)]
    if not blocks or not is_fresh(context):
        return
    for rank, name in enumerate(SCHEMES[family(context)]):
        if all(block.scheme.name == name for _, block in blocks):
            continue
        edits = tuple(Edit(action="scheme", where=path, options={"scheme": name}) for path, _ in blocks)
        before = blocks[0][1].scheme.name
        yield Plan(
            title=f"{len(blocks)} residual blocks from scheme {before} to {name}",
            edits=edits,
            promise=0.8 - rank / 10,
        )
