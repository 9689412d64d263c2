"""A sweep with a time limit stops when the time is over or the work is done."""

import pytest

from benchmarks.time_limit import UNFINISHED, OutOfTimeError, take, until


def test_a_sweep_stops_at_its_time_limit_unless_the_work_is_done(capsys):
    late = until(-1.0, "cells")
    late(2, 2, "")
    with pytest.raises(OutOfTimeError):
        late(1, 2, "")
    until(3600.0, "cells")(1, 2, "")
    assert capsys.readouterr().out.startswith("cells 2/2")


def test_an_unfinished_sweep_has_its_own_exit_code():
    def main():
        raise OutOfTimeError

    with pytest.raises(SystemExit) as ended:
        take(main)
    assert ended.value.code == UNFINISHED
