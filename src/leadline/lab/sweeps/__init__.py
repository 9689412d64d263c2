"""Sweeps: many independent cells of work, on this machine or a cluster; a finished cell is never run again.

cells      a cell of work: its settings, its key and its outcome
store      a file of finished cells that survives a killed run and can be merged with others
executors  run bundles of cells in this process, in worker processes (joblib), or on Ray
run        run the missing cells, retry after the death of a worker, and store results as they arrive

An executor is a function of the work and the bundles. It yields (index, outcome) in the order in which bundles finish.
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
