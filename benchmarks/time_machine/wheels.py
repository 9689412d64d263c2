"""Throw-away environments: one folder per wheel, first on the path of a process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

# Heuristic: processor time of one wheel; ten times what it takes.
MAX_PROCESSOR_SECONDS = 600
COUPLED = {"huggingface-hub", "tokenizers"}
"""Dependencies whose version must be the one that the wheel asks for; all others come from this environment."""

LIMITS = (("diffusers<0.29", "huggingface-hub<0.26"), ("diffusers<0.29", "transformers==4.37.0"))
"""Wheels, and what they need although they do not say so: functions that they import were removed since."""

INSTALLED = "installed"
"""An empty file in a kept folder that says that the installation ended."""

SUPPORT = (
    *("anyio", "certifi", "charset_normalizer", "h11", "httpcore", "httpx", "idna", "sniffio", "urllib3"),
    *("requests", "einops", "einx", "importlib_metadata", "zipp", "setuptools<80"),
)
"""Small pure packages that some wheels import; they are installed once for all wheels of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The folders of one wheel, in the order of the path, and the seconds that it took to install it."""

    folders: tuple[Path, ...]
    seconds: float

    def run(self, work: Callable[[], None]) -> tuple[str, str]:
        """Call `work` in a forked process with the wheel first on its path; what it wrote to stdout and stderr.

        The process inherits an imported torch, whose import takes longer than the checks of a wheel.
        """
        with TemporaryDirectory() as place:
            out, err = Path(place, "out"), Path(place, "err")
            child = os.fork()
            if child == 0:
                self._work_and_exit(work, out, err)
            os.waitpid(child, 0)
            return out.read_text(), err.read_text()

    def _work_and_exit(self, work: Callable[[], None], out: Path, err: Path) -> NoReturn:
        try:
            for stream, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
            os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
            sys.path[:0] = map(str, self.folders)
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_SECONDS, MAX_PROCESSOR_SECONDS))
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


@contextmanager
def environments(kept: Path | None = None) -> Iterator[WheelInstaller]:
    """Folders that are deleted at the end, whatever happens; with `kept`, wheels are installed there and stay."""
    with TemporaryDirectory(prefix="time-machine-") as folder:
        yield WheelInstaller(Path(folder), kept)


class WheelInstaller:
    """Installs each wheel into a folder of its own.

    With `kept`, the folders are below it, are called `PACKAGE-VERSION`, and are used again.
    """

    def __init__(self, folder: Path, kept: Path | None = None) -> None:
        self._folder = folder
        self._kept = kept

    @contextmanager
    def install(self, package: str, version: str, extra: Sequence[str] = ()) -> Iterator[Environment]:
        """The environment of one wheel; its folder is deleted afterward, unless folders are kept."""
        support = self._support()
        start = time.perf_counter()
        if self._kept is not None:
            target = self._kept / "+".join([f"{package}-{version}", *extra])
            if not (target / INSTALLED).exists():
                _install_into(target, package, version, extra)
                (target / INSTALLED).touch()
            yield Environment(folders=(target, support), seconds=time.perf_counter() - start)
            return
        with TemporaryDirectory(dir=self._folder) as place:
            _install_into(Path(place), package, version, extra)
            yield Environment(folders=(Path(place), support), seconds=time.perf_counter() - start)

    def _support(self) -> Path:
        support = (self._kept or self._folder) / "support"
        if not support.exists():
            pip_install(support, SUPPORT)
        return support


def _install_into(target: Path, package: str, version: str, extra: Sequence[str]) -> None:
    needed = [limit for wheel, limit in LIMITS if _matches(wheel, package, version)]
    limits = [each for each in needed if Requirement(each).name in COUPLED]
    beside = [each for each in needed if each not in limits]
    if not pip_install(target, [f"{package}=={version}", *extra, *beside]):
        raise RuntimeError(f"cannot install {package} {version}")
    for each in coupled_requirements(target, limits):
        if not pip_install(target, [each]):
            _skip_version_check(target)


def pip_install(target: Path, requirements: Sequence[str]) -> bool:
    """Install exactly these distributions, without what they depend on; whether it worked."""
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--upgrade", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, *words, *requirements], capture_output=True, text=True, check=False
    )
    return done.returncode == 0


def _matches(wheel: str, package: str, version: str) -> bool:
    requirement = Requirement(wheel)
    return requirement.name == package and requirement.specifier.contains(version)


def coupled_requirements(target: Path, limits: Sequence[str] = ()) -> list[str]:
    """What the wheels in the folder ask for, as far as its version matters here; one requirement per distribution.

    `limits` are further requirements, for wheels that did not know that a later version would break them.
    """
    asked: dict[str, SpecifierSet] = {}
    for metadata in target.glob("*.dist-info/METADATA"):
        for line in Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", []):
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and name in COUPLED:
                asked[name] = asked.get(name, SpecifierSet()) & requirement.specifier
    for limit in map(Requirement, limits):
        asked[limit.name] = asked.get(limit.name, SpecifierSet()) & limit.specifier
    return [f"{name}{specifier}" for name, specifier in asked.items()]


def _skip_version_check(target: Path) -> None:
    """Let a release of transformers start beside a newer tokenizer, which no model needs."""
    check = target / "transformers" / "dependency_versions_check.py"
    if check.exists():
        check.write_text("def dep_version_check(pkg, hint=None):\n    pass\n")
