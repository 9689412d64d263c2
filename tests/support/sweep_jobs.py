"""Work functions for sweeps that a worker process can import: they count their calls in files, raise, or die."""

import os
import signal
from functools import partial
from pathlib import Path

from leadline.lab.sweeps import Job


def job(function, version="1"):
    """Return a job that runs `function` on each cell."""
    return Job(work=partial(_run_each, function), version=version)


def _run_each(function, bundle):
    return [function(settings) for settings in bundle]


def square(settings):
    return {"square": settings["x"] ** 2}


def counted(settings):
    """Append a line to the file of the cell, so that tests can count the runs."""
    with open(Path(settings["folder"]) / str(settings["x"]), "a") as file:
        file.write("ran\n")
    return square(settings)


def mortal(settings):
    """Kill the process as often as `deaths` says, then run like `counted`."""
    folder, x = Path(settings["folder"]), settings["x"]
    deaths = folder / f"deaths-{x}"
    so_far = len(deaths.read_text()) if deaths.exists() else 0
    if so_far < settings["deaths"]:
        deaths.write_text("x" * (so_far + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(settings)


def raising(settings):
    if settings["x"] == 2:
        raise ValueError("two is not allowed")
    return square(settings)


def bundled(bundle):
    """Return the size of the bundle for each cell; a bundle of three raises."""
    if len(bundle) == 3:
        raise ValueError("three at once")
    return [{"x": settings["x"], "with": len(bundle)} for settings in bundle]
