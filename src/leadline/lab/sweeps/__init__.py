"""Sweeps: many independent pieces of work, here or on a cluster; a finished one is never done again.

cells      a piece of work: its settings, and the key that is made of them
store      finished cells, a line each, in a file that survives being killed and merges with others
outcomes   what may become of a bundle of cells: done, raised, or its worker died
here       the executor without workers
processes  the executor with worker processes (joblib)
cluster    the executor on Ray, local or by the address of a cluster
running    what is missing is run, deaths are retried, results are stored as they come

An executor is a function: work and bundles of cells in, (index, outcome) out in the order in which they end.
"""

from leadline.lab.sweeps.cells import Bundle, Executor, Success, Work, WorkerDeath, WorkError, cell_key
from leadline.lab.sweeps.executors import find_executor
from leadline.lab.sweeps.run import Failure, Job, Progress, Sweep, run_sweep
from leadline.lab.sweeps.store import CellStore

__all__ = [
    "Bundle",
    "CellStore",
    "Executor",
    "Failure",
    "Job",
    "Progress",
    "Success",
    "Sweep",
    "Work",
    "WorkError",
    "WorkerDeath",
    "cell_key",
    "find_executor",
    "run_sweep",
]
