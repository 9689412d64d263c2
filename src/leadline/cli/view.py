"""`leadline view`: shows runs in the browser, during and after training."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path

import click

from leadline.cli.exit_codes import FINE
from leadline.cli.options import examples
from leadline.cli.output import emit, say
from leadline.errors import InputError, install_extra
from leadline.monitor.runfile.summary import find_runs


@click.command(
    epilog=examples(
        "leadline view run.leadline", "leadline view monday.leadline tuesday.leadline", "leadline view runs/"
    )
)
@click.argument(
    "places", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page; 0, the default, picks a free one.",
)
@click.option(
    "--open/--no-open", "opens", default=True, help="Open the page in the browser at once (default)."
)
def view(places: tuple[Path, ...], port: int, opens: bool) -> int:
    """Show runs in the browser: curves, depth × step maps, profiles, alerts; live while they are written.

    RUN is a run file or a folder of them. The page is served on 127.0.0.1 only; its address is printed. Reading a run
    does not disturb it. Stop with Ctrl-C. It needs the extra `live`, but not torch.
    """
    try:
        from leadline.monitor.live.server import prepare_server  # needs the extra `live`
    except ModuleNotFoundError as error:
        raise InputError(
            expected="starlette, uvicorn and sse-starlette, which serve the live page",
            got=f"no module {error.name!r}",
            fix=install_extra("live"),
        ) from None
    server = prepare_server([path for place in places for path in find_runs(place)], port)
    emit(f"{server.url}\n")
    say("press Ctrl-C to stop the server; training goes on")
    if opens:
        webbrowser.open(server.url)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return FINE
