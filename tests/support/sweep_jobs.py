"""Work for sweeps that a worker process can import: it counts its calls in files, raises, or dies."""

import os
import signal
from functools import partial
from pathlib import Path

from leadline.lab.sweeps import Job


def job(function, version="1"):
    """Cell by cell."""
    return Job(work=partial(_over, function), version=version)


def _over(function, bundle):
    return [function(settings) for settings in bundle]


def square(settings):
    return {"square": settings["x"] ** 2}


def counted(settings):
    """Leaves one more line in a file of the cell's own."""
    with open(Path(settings["folder"]) / str(settings["x"]), "a") as file:
        file.write("ran\n")
    return square(settings)


def mortal(settings):
    """The cells named in `deadly` kill their process, as often as told, before they count."""
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
    """Says with how many others each cell came; three together are too many."""
    if len(bundle) == 3:
        raise ValueError("three at once")
    return [{"x": settings["x"], "with": len(bundle)} for settings in bundle]
