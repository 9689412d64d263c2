"""Names for blocks, in the user's own module and parameter names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leadline.readings.graph import is_weighted
from leadline.records import Op, Trace


def name_blocks(trace: Trace, blocks: Sequence[Sequence[int]]) -> list[str]:
    """A unique name for each block (given as op indices): the module that holds its weights.

    Blocks that share a module, like the attention and the feed-forward part of one layer, are told apart by the first
    and last of their layers; calls of the same module by a number.
    """
    paths = [_paths([trace.ops[op] for op in block]) for block in blocks]
    names = [_common(each) for each in paths]
    counts = Counter(names)
    names = [_span(name, each) if counts[name] > 1 else name for name, each in zip(names, paths, strict=True)]
    counts, seen = Counter(names), Counter[str]()
    for index, name in enumerate(names):
        seen[name] += 1
        if counts[name] > 1:
            names[index] = f"{name}#{seen[name]}"
    return names


def _paths(ops: Sequence[Op]) -> list[str]:
    weighted = [op for op in ops if is_weighted(op)]
    paths = [_path(op) for op in weighted or ops]
    return list(dict.fromkeys(path for path in paths if path)) or [ops[-1].name if ops else "?"]


def _path(op: Op) -> str:
    """The module that was running, or the one inside it that owns the op's parameters.

    A parameter of the model itself goes by its own name. A tied weight is owned elsewhere: then the caller counts.
    """
    if not op.params:
        return op.module
    owner = op.params[0].rpartition(".")[0] or op.params[0]
    inside = not op.module or owner.startswith(f"{op.module}.")
    return owner if inside else op.module


def _common(paths: Sequence[str]) -> str:
    """The innermost path that contains all of them."""
    parts = [path.split(".") for path in paths]
    shared = 0
    while all(shared < len(each) for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return ".".join(parts[0][:shared]) or "…".join(dict.fromkeys((paths[0], paths[-1])))


def _span(name: str, paths: Sequence[str]) -> str:
    """`layers.3` made of `layers.3.fc1` and `layers.3.fc2` becomes `layers.3.fc1…fc2`."""
    tails = [path.removeprefix(f"{name}.") for path in paths if path.startswith(f"{name}.")]
    return f"{name}.{'…'.join(dict.fromkeys((tails[0], tails[-1])))}" if tails else name
