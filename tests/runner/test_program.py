"""A program under Leadline has the same `__main__`, arguments, errors and exit code as without."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.support.program_runs import allow_interrupts, process_environment, run_python

ENVIRONMENT = """
import inspect, os, pickle, sys, multiprocessing
class Thing: pass
def visible():
    main = sys.modules["__main__"]
    print(__name__, __file__, __spec__ and __spec__.name, __package__, __doc__, type(__loader__).__name__)
    print(sys.argv, sys.path[0])
    print(main.__dict__ is globals(), os.getcwd(), sorted(name for name in globals() if name.startswith("__")))
    print(pickle.loads(pickle.dumps(Thing())).__class__, inspect.getsource(Thing))
    print(sys.stdout.errors, sys.stdout.encoding, "torch" in sys.modules)
if __name__ == "__main__":
    visible()
"""


def both(folder, source, *arguments, options=(), name="program.py"):
    (folder / name).write_text(source)
    plain = run_python([name, *arguments], folder)
    attached = run_python(["-m", "leadline", "run", *options, name, *arguments], folder)
    return plain, attached


def program_lines(error):
    return [line for line in error.splitlines() if not line.startswith("leadline: ")]


def test_a_script_sees_the_same_main_module_arguments_and_paths(tmp_path):
    plain, attached = both(tmp_path, ENVIRONMENT, "--epochs", "3", "-q", "--", "x")
    assert attached.out == plain.out
    assert "['program.py', '--epochs', '3', '-q', '--', 'x']" in plain.out


def test_a_module_sees_the_same_main_module_arguments_and_paths(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "train.py").write_text(ENVIRONMENT)
    plain = run_python(["-m", "pack.train", "--epochs", "3"], tmp_path)
    attached = run_python(["-m", "leadline", "run", "-m", "pack.train", "--epochs", "3"], tmp_path)
    assert attached.out == plain.out
    assert attached.code == plain.code == 0


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a message')", 1),
        ("import os; print('x', flush=True); os._exit(4)", 4),
        ("def f():\n    raise ValueError('wrong')\nf()", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('later') from error", 1),
        ("def f(:\n    pass", 1),
        ("import atexit; atexit.register(print, 'at exit'); print('end')", 0),
        ("import sys; sys.excepthook = lambda *error: print('own hook', error[0]); raise ValueError", 1),
    ],
)
def test_a_script_ends_with_the_same_code_and_the_same_error_text(tmp_path, source, code):
    plain, attached = both(tmp_path, source)
    assert plain.code == attached.code == code
    assert attached.out == plain.out
    assert program_lines(attached.err) == plain.err.splitlines()


def test_an_error_in_a_module_prints_the_same_traceback(tmp_path):
    (tmp_path / "broken.py").write_text("raise ValueError('wrong')")
    plain = run_python(["-m", "broken"], tmp_path)
    attached = run_python(["-m", "leadline", "run", "-m", "broken"], tmp_path)
    assert program_lines(attached.err) == plain.err.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_process_as_without_leadline(tmp_path, number):
    (tmp_path / "program.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    codes, errors = [], []
    for command in (["program.py"], ["-m", "leadline", "run", "program.py"]):
        with subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=process_environment(),
            preexec_fn=allow_interrupts,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(number)
            errors.append(process.communicate(timeout=60)[1])
        codes.append(process.returncode)
    assert codes == [-number, -number]
    assert program_lines(errors[1]) == errors[0].splitlines()


def test_processes_that_the_program_starts_import_the_program_and_not_leadline(tmp_path):
    source = """
import multiprocessing, os, sys
def work(number):
    return number, "leadline" in sys.modules, __name__
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sorted(pool.map(work, range(3))))
    if os.fork() == 0:
        print("child", flush=True)
        os._exit(0)
    os.wait()
"""
    plain, attached = both(tmp_path, source)
    assert attached.out == plain.out
    assert "(0, False, '__mp_main__')" in plain.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trian.py", "did you mean train.py?"),
        ("folder", "which is a folder"),
        ("data.bin", "which is not Python source code"),
    ],
)
def test_a_program_that_cannot_be_run_is_explained(tmp_path, name, words):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    result = run_python(["-m", "leadline", "run", name], tmp_path)
    assert result.code == 2
    assert words in result.err


def test_a_module_that_does_not_exist_is_explained(tmp_path):
    result = run_python(["-m", "leadline", "run", "-m", "no_such_package.train"], tmp_path)
    assert result.code == 2
    assert "no module named 'no_such_package'" in result.err


def test_a_program_without_torch_is_run_and_said_to_be_without_torch(tmp_path):
    _, attached = both(tmp_path, "print(1)")
    assert attached.out == "1\n"
    assert "the program did not import torch" in attached.err
