"""Compiles stats_kernel.c for a wheel where there is a C compiler; elsewhere the wheel is pure Python.

LEADLINE_KERNEL=no leaves the kernel out, for the wheel of all platforms. LEADLINE_KERNEL=yes makes it an error if the
kernel cannot be compiled.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TRACER = Path("src", "leadline", "tracer")
LIBRARY = "_stats_kernel.so"
# Sums may be added in another order, so that several numbers are added at once; NaN and infinities keep their meaning.
FLAGS = [
    *("-O3", "-std=c11", "-shared", "-fPIC", "-fno-strict-aliasing", "-fno-math-errno"),
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"),
]


class KernelHook(BuildHookInterface):
    """Puts the compiled kernel into the wheel, and names the platform in the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("LEADLINE_KERNEL", "")
        if wanted not in ("", "yes", "no"):
            raise ValueError(f"LEADLINE_KERNEL is {wanted!r}; expected yes, no or nothing")
        source = Path(self.root) / TRACER
        self.folder = TemporaryDirectory()  # it is removed with this object, after the wheel is written
        library = (source if version == "editable" else Path(self.folder.name)) / LIBRARY
        library.unlink(missing_ok=True)  # one that was compiled before may be older than its source
        problem = "LEADLINE_KERNEL is no" if wanted == "no" else compile_kernel(source, library)
        if problem and wanted == "yes":
            raise RuntimeError(f"the kernel was not compiled: {problem}")
        if problem:
            self.app.display_info(f"without the compiled kernel: {problem}")
        elif version != "editable":
            build_data["force_include"][str(library)] = f"leadline/tracer/{LIBRARY}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"


def compile_kernel(source: Path, library: Path) -> str:
    """Compile the kernel in the folder `source` into `library`; return why that is not possible, or ""."""
    if os.name != "posix":
        return "it is compiled on Linux and macOS only"
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler ({compiler[0]})"
    command = [*compiler, *FLAGS, "-o", str(library), str(source / "stats_kernel.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{shlex.join(command)} failed: {done.stderr.strip()}"


def platform_tag() -> str:
    """The platform as a wheel's tag names it, such as linux_x86_64."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
