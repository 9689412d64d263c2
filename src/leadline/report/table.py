"""Every block of the depth axis in a table, for those who ask for everything."""

from __future__ import annotations

from rich.text import Text

from leadline.records import Block, Profile
from leadline.report.layout import QUIET
from leadline.report.text import clean, number, shorten

INDEX, NUMBER, KIND = 6, 11, 14


def block_lines(profile: Profile, width: int) -> list[Text]:
    """One line a block in order of depth: number, name, forward and backward second moment, what kind it is."""
    room = width - INDEX - 2 * NUMBER - KIND - 2
    header = (
        f"{'block':<{INDEX}}{'name':<{room}}{'forward':>{NUMBER}}{'backward':>{NUMBER}}  {'kind':<{KIND}}"
    )
    lines = [Text(header.rstrip(), style=QUIET)]
    return lines + [_line(place, block, room) for place, block in enumerate(profile.shown.blocks)]


def _line(place: int, block: Block, room: int) -> Text:
    name = Text(shorten(clean(block.name), room - 1))
    name.pad_right(room - name.cell_len)
    numbers = f"{number(block.forward_ms):>{NUMBER}}{number(block.backward_ms):>{NUMBER}}"
    return Text.assemble((f"{place:<{INDEX}}", QUIET), name, numbers, (f"  {_kind(block)}", QUIET))


def _kind(block: Block) -> str:
    words = f"residual {block.residual.placement}" if block.residual else "plain"
    return shorten(f"{words}{' bypassed' if block.bypassed else ''}", KIND)
