"""Work in a forked child that never comes back into the test.

A child that raised would go on as a second copy of the process that runs the tests, with the same pipes to the one that
collects the results; the whole run then hangs.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

# Heuristic: seconds for what takes milliseconds.
PATIENCE = 20


def status_in_child(work: Callable[[], object], patience: int = PATIENCE) -> int:
    """The status of a forked child that does the work: 0 if it came to its end.

    The system stops a child that waits for a lock, because such a child cannot stop itself.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(patience)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
