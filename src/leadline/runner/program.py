"""Run a script or a module as `__main__` of this process, exactly as `python script.py` or `python -m module` would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from leadline.errors import InputError
from leadline.tracer.sources import OWN_FOLDER

SOURCE_SUFFIXES = (".py", ".pyw")
# Calibrated by benchmarks/first_hour: batches of a check; it is right more often with eight than with one.
DEFAULT_BATCHES = 8


class ProgramStop(SystemExit):
    """Ends the program because Leadline was asked to; it passes through `except Exception`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its arguments: the path of a script, or with `is_module` the name of a module."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    text: str | None = None
    """Source that is run instead of the script's own, under its name; None: the script as it is."""

    @property
    def name(self) -> str:
        """The name by which messages call the program."""
        return self.target if self.is_module else Path(self.target).name

    @property
    def stem(self) -> str:
        """A name for files that belong to the program."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem


def locate_program(program: Program) -> None:
    """Raise InputError unless the program exists and is Python. This imports no code of the program."""
    if program.is_module:
        _locate_module(program.target)
        return
    path = Path(program.target)
    if path.is_dir():
        raise InputError(
            expected="a Python script",
            got=f"{program.target!r}, which is a folder",
            fix=f"name the file, for instance {path / 'train.py'}, or run a package with -m {path.name}",
        )
    if not path.is_file():
        raise InputError(
            expected="a Python script",
            got=f"{program.target!r}, which does not exist",
            fix=_suggest_script(path),
        )
    if path.suffix not in SOURCE_SUFFIXES and not _is_source(path):
        raise InputError(
            expected="a Python script",
            got=f"{program.target!r}, which is not Python source code",
            fix="name the .py file that trains the model",
        )


def _locate_module(name: str) -> None:
    """Look only for the outermost package: finding a submodule would import its parents."""
    outermost = name.partition(".")[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        is_found = outermost in sys.modules or importlib.util.find_spec(outermost) is not None
    except (ImportError, ValueError):
        is_found = False
    finally:
        sys.path.pop(0)
    if not is_found:
        raise InputError(
            expected="a module that can be imported",
            got=f"{name!r}: no module named {outermost!r}",
            fix="check the spelling, or run from the folder that contains it",
        )


def _suggest_script(path: Path) -> str:
    neighbors = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, neighbors, n=1)
    if close:
        return f"did you mean {path.parent / close[0]}?"
    if path.suffix not in SOURCE_SUFFIXES and path.parent == Path():
        return f"give the path of a .py file, or run a module with -m {path.name}"
    return f"check the path; it is relative to {Path.cwd()}"


def _is_source(path: Path) -> bool:
    """Whether a file without the usual suffix compiles as Python, as `python file` would try."""
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (OSError, SyntaxError, ValueError):
        return False
    return True


# Running it.


def run_program(program: Program, finish: Callable[[BaseException | None], object]) -> int:
    """Run the program to its end, call `finish` with the error that ended it (or None), and return the exit code.

    A traceback is printed as Python prints it, without Leadline's frames. SystemExit and KeyboardInterrupt are passed
    on for the interpreter to handle: messages of `sys.exit("text")`, and the signal that a shell expects.
    """
    become_main(program)
    try:
        execute(program)
    except SystemExit as stop:
        finish(stop)
        raise
    except BaseException as error:
        remove_own_frames(error)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        finish(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = (
                _print_nothing  # the traceback is printed; the interpreter still ends by the signal
            )
            raise
        return 1
    finish(None)
    return 0


def become_main(program: Program) -> None:
    """Give the process the `__main__` module, `sys.argv` and `sys.path` that the program would have on its own."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = [program.target, *program.arguments]
    if program.is_module:
        first = os.getcwd()
        sys.argv[0] = "-m"  # as Python has it until the module is found
    else:
        path = os.path.abspath(program.target)
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
        first = os.path.dirname(os.path.realpath(program.target))
    if not sys.flags.safe_path and not sys.flags.isolated:
        sys.path[:1] = [first]


def execute(program: Program) -> None:
    """Run the code of the program, for which `become_main` has prepared this process."""
    main = sys.modules["__main__"]
    if program.is_module:
        # What `python -m` itself calls: it finds the module, sets `__spec__` and `sys.argv[0]`, and runs it.
        runpy._run_module_as_main(program.target)  # type: ignore[attr-defined]
        return
    path = main.__dict__["__file__"]
    source: str | bytes
    if program.text is not None:
        source = program.text
    else:
        with io.open_code(path) as file:
            source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _print_nothing(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    pass


def remove_own_frames(error: BaseException) -> None:
    """Remove Leadline's frames from the tracebacks of an error and of the errors that it came from."""
    todo: list[BaseException | None] = [error]
    done: set[int] = set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in done:
            continue
        done.add(id(each))
        each.__traceback__ = _without_own_frames(each.__traceback__)
        todo += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(f"{OWN_FOLDER}{os.sep}"):
            kept.append(trace)
        trace = trace.tb_next
    for place, each in enumerate(kept):
        each.tb_next = kept[place + 1] if place + 1 < len(kept) else None
    return kept[0] if kept else None


# Attaching to torch.


def on_import_of_torch(attach: Callable[[], object]) -> None:
    """Call `attach` as soon as the program has imported torch; at once if it is imported already.

    Torch reads settings such as OMP_NUM_THREADS from the environment when it is imported, and programs set them before
    they import it. So Leadline must not import it first.
    """
    if "torch" in sys.modules:
        attach()
    else:
        sys.meta_path.insert(0, _TorchFinder(attach))


class _TorchFinder:
    """Finds nothing itself, but lets `attach` run after torch has been executed."""

    def __init__(self, attach: Callable[[], object]) -> None:
        self._attach = attach

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load, attach = spec.loader.exec_module, self._attach

            def load_and_attach(module: ModuleType) -> None:
                load(module)
                attach()

            spec.loader.exec_module = load_and_attach  # type: ignore[method-assign]
        return spec
