"""Start-up times meet their goals; `tests/docs/test_docs.py` compares the table with them."""

from benchmarks import start_up
from benchmarks.result_files import load


def test_help_and_import_stay_within_their_goals():
    median = {name: each["median"] for name, each in load("start_up")["cases"]["one thread"].items()}
    assert median["help"] < start_up.GOALS["`leadline --help`"]
    assert median["leadline"] < start_up.GOALS["`import leadline`, beyond torch"]
