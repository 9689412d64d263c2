"""The executor of that name."""

from __future__ import annotations

import os

from leadline.errors import InputError
from leadline.sweeps.cluster import on_ray
from leadline.sweeps.here import in_process
from leadline.sweeps.outcomes import Executor
from leadline.sweeps.processes import on_joblib

NAMES = ("joblib", "here", "ray")


def find_executor(
    name: str = "joblib", *, workers: int | None = None, address: str | None = None
) -> Executor:
    """`joblib`: worker processes, one a core if not told otherwise; `here`: this process; `ray`: see `on_ray`.

    One worker needs no process of its own: `joblib` with one is `here`.
    """
    if workers is not None and workers < 1:
        raise InputError(
            expected="workers: 1 or more", got=f"workers={workers}", fix="leave it out for one a core"
        )
    amount = workers or os.cpu_count() or 1
    if name == "here" or (name == "joblib" and amount == 1):
        return in_process
    if name == "joblib":
        return on_joblib(amount)
    if name == "ray":
        return on_ray(address, workers)
    raise InputError(
        expected="executor: one of " + ", ".join(NAMES), got=f"executor={name!r}", fix="take one of these"
    )
