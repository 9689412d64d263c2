"""The benchmark of the policy: its scripts, its truth, and a page that states no share before all is measured."""

import ast

import pytest

from benchmarks.agent_policy import __main__ as page
from benchmarks.agent_policy import policy
from benchmarks.agent_policy.bugs import BUGS, GUESSES, PROGRAMS
from benchmarks.agent_policy.policy import Done, keys_of

KEYS = {bug.key for bug in BUGS}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.key)
def test_a_mistake_changes_its_script_and_leaves_it_python(bug):
    healthy = (PROGRAMS / f"{bug.program}.py").read_text()
    assert bug.source() != healthy
    ast.parse(bug.source())


def test_there_are_thirty_scripts_of_every_program_in_two_halves():
    assert len({bug.key for bug in BUGS}) == len(BUGS) >= 30
    assert {bug.program for bug in BUGS} == {path.stem for path in PROGRAMS.glob("*.py")} == {*GUESSES}
    assert 10 <= sum(bug.is_held_out for bug in BUGS) <= len(BUGS) - 10


def results(followed, amount):
    twins = {f"{name}/healthy": {"untouched": 1.0} for name in GUESSES}
    case = {"untouched": 0.0, "followed": followed, "applied": True, "cause": "U501 step-too-long (error)"}
    return {"cases": twins | {bug.key: case for bug in BUGS[:amount]}, "machine": {"cpu": "x", "torch": "2"}}


def test_a_script_is_right_if_it_comes_near_its_healthy_twin():
    found = results(0.95, len(BUGS))
    assert page.is_right(0.95, "digits", found)
    assert not page.is_right(0.8, "digits", found)
    assert not page.is_right(None, "digits", found)
    assert page.shares(BUGS, found, found["cases"]) == (len(BUGS), 0, len(BUGS))


def total(found):
    return next(line for line in page.render(found).splitlines() if line.startswith("| all |"))


def test_no_share_is_stated_before_every_script_has_a_result():
    some, every = results(1.0, 3), results(1.0, len(BUGS))
    assert f"So far 3 of {len(BUGS)} scripts" in page.render(some)
    assert "3 measured" in total(some)
    assert "So far" not in page.render(every)
    assert f"**{len(BUGS)} (100 %)**" in total(every)


def test_the_first_answers_stand_beside_the_later_ones():
    found = results(1.0, len(BUGS))
    found["first"] = {key: {**case, "followed": 0.0} for key, case in found["cases"].items() if key in KEYS}
    assert total(found) == f"| all | {len(BUGS)} | 0 (0 %) | 0 (0 %) | **{len(BUGS)} (100 %)** |"


def test_first_answers_are_kept_once_and_only_if_there_are_all(monkeypatch):
    store = {page.NAME: results(1.0, 3)}
    monkeypatch.setattr(page, "load", store.get)
    monkeypatch.setattr(page, "save", store.__setitem__)
    with pytest.raises(SystemExit, match="no answer yet"):
        page.keep_first()
    store[page.NAME] = results(1.0, len(BUGS))
    page.keep_first()
    kept = store[page.NAME]
    assert kept["first"].keys() == KEYS
    assert kept["cases"].keys().isdisjoint(KEYS)
    with pytest.raises(SystemExit, match="kept already"):
        page.keep_first()


def test_the_first_of_several_causes_is_read():
    assert keys_of("verdict: TRAINS\ncause: A\ncause: B\n") == {"verdict": "TRAINS", "cause": "A"}


class Shell:
    """Answers commands of Leadline from a list of what each should print, and records them."""

    def __init__(self, *answers):
        self.answers, self.commands = list(answers), []

    def __call__(self, words, folder):
        self.commands.append(" ".join(words))
        return Done(self.answers.pop(0), "", 0)


def written_score(folder):
    """The score that the script would print: a forked child would write into pytest's own capture."""
    return float((folder / policy.SCRIPT).read_text().split()[1].rstrip("')"))


DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-print('score 0')\n+print('score 1')\n"
CLEAN = "verdict: TRAINS\nnext: leadline check train.py --steps 64 --format agent\n"


def test_the_policy_follows_next_to_the_loop_and_applies_the_diff_it_finds_there(monkeypatch):
    found = "cause: T816\nfix: leadline fix train.py --steps 64 --diff\nrecheck: leadline check train.py --steps 64\n"
    shell = Shell(CLEAN, found, DIFF, "verdict: TRAINS\n")
    monkeypatch.setattr(policy, "leadline", shell)
    monkeypatch.setattr(policy, "score_of", written_score)
    done = policy.follow("print('score 0')\n")
    assert (done["untouched"], done["followed"], done["cause"]) == (0.0, 1.0, "T816")
    assert shell.commands == [
        "check train.py --format agent",
        "check train.py --steps 64 --format agent",
        "fix train.py --steps 64 --diff --budget 10s",
        "check train.py --steps 64",
    ]


def test_the_policy_stops_where_no_diff_is_offered(monkeypatch):
    shell = Shell("cause: U501\nfix: leadline fix train.py --diff\n", "")
    monkeypatch.setattr(policy, "leadline", shell)
    monkeypatch.setattr(policy, "score_of", written_score)
    done = policy.follow("print('score 0')\n")
    assert (done["followed"], done["applied"], len(done["rounds"])) == (0.0, False, 1)
