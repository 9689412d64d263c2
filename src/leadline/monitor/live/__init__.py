"""The live page: a process of its own that reads run files and shows them in a browser, on this machine only.

thinning    fewer points and rows, without losing what stands out
messages    what a page is told of a run: all of it, or what is new
shelf       the runs of one page, opened again when a file is replaced
stream      news as server-sent events, by cursor
checks      profiles of the checks stored on the way, with theory beside them; a moment as a static report
guard       who may ask, and for how much
app         the addresses
page        the page itself
serving     a free port on the loopback interface
notebook    the page inside of a notebook

`leadline.monitor.live.show` is the notebook's; `leadline view` the command line's. Needs the extra `live`.
"""

from __future__ import annotations

from leadline.monitor.live.notebook import Shown, show

__all__ = ["Shown", "show"]
