"""The release archives: built twice with the same bytes, checked, and the wheel tried where only torch is installed.

python -m tests.support.distribution dist     build sdist and wheel into dist/ and try the wheel
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
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.metadata import Metadata

from tests.support import ROOT

PACKAGE = ROOT / "src" / "leadline"
README_EXAMPLE = "import doctest, sys; sys.exit(doctest.testfile(sys.argv[1], module_relative=False).failed)"


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], cwd=ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


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
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(PACKAGE.parent).as_posix() for path in files}
    return [f"missing or foreign in the wheel: {name}" for name in sorted(held ^ wanted)]


def sdist_problems(sdist: Path) -> list[str]:
    """What somebody who builds from the sdist would miss."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/leadline/api.py",
        "tests/conftest.py",
    )
    return [f"missing in the sdist: {name}" for name in needed if name not in names]


def try_wheel(wheel: Path, torch: str) -> None:
    """Install the wheel into an environment that holds only torch, and run the first examples of the README there."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "env", with_pip=True)
        python = str(place / "env" / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", f"torch=={torch}"], cwd=place)
        _run([python, "-m", "pip", "install", "--quiet", str(wheel.resolve())], cwd=place)
        _run([python, "-m", "pip", "check"], cwd=place)
        shutil.copytree(ROOT / "examples", place / "examples")
        leadline = str(place / "env" / "bin" / "leadline")
        shown = _run([leadline, "run", "examples/train.py", "--steps", "30"], cwd=place)
        if "LEARNS THE WRONG THING" not in shown or "steps watched" not in shown:
            raise SystemExit(f"the first example of the README says something else:\n{shown}")
        _run([python, "-c", README_EXAMPLE, str(ROOT / "README.md")], cwd=place)
        _run([leadline, "check", "examples/train.py", "--html", "report.html"], cwd=place, code=1)
        page = (place / "report.html").read_text(encoding="utf-8")
        if "LEARNS THE WRONG THING" not in page:
            raise SystemExit("report.html does not hold the verdict")
        for words in (["explain", "D902"], ["rules"], ["doctor"], ["demo"]):
            _run([leadline, *words], cwd=place)


def _run(command: list[str], cwd: Path, code: int = 0) -> str:
    """What the command writes; the first command that ends otherwise than expected stops everything."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(folder: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sdist, wheel = build(folder)
    with TemporaryDirectory() as second:
        for first, again in zip((sdist, wheel), build(Path(second) / "dist"), strict=True):
            if first.read_bytes() != again.read_bytes():
                raise SystemExit(f"{first.name} has other bytes when it is built again")
    problems = [
        *metadata_problems(wheel_metadata(wheel), declared),
        *missing_files(wheel),
        *sdist_problems(sdist),
    ]
    if problems:
        raise SystemExit("\n".join(problems))
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if pinned is None:
        raise SystemExit("constraints.txt pins no torch")
    try_wheel(wheel, pinned[1])
    sizes = ", ".join(f"{each.name} ({each.stat().st_size / 1e6:.1f} MB)" for each in (sdist, wheel))
    sys.stdout.write(
        f"{sizes}: same bytes twice, metadata valid, examples run where only torch was installed\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
