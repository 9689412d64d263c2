"""Every block of the depth axis in a table, for those who ask for everything."""

from __future__ import annotations

from rich.text import Text

from leadline.records import Block, Profile
from leadline.report.layout import QUIET
from leadline.report.text import clean, number, shorten

INDEX, NUMBER, KIND = 6, 11, 14
LEAST_NAME = 12  # cells a name keeps before theory gets its columns


def block_lines(profile: Profile, width: int) -> list[Text]:
    """One line a block in order of depth: number, name, forward and backward second moment, what kind it is."""
    room = width - INDEX - 2 * NUMBER - KIND - 2
    both = not profile.predicted and any(block.forward_ms_predicted for block in profile.blocks)
    beside = both and room - 2 * NUMBER >= LEAST_NAME
    titles = ("forward", "theory", "backward", "theory") if beside else ("forward", "backward")
    room -= 2 * NUMBER if beside else 0
    header = f"{'block':<{INDEX}}{'name':<{room}}{''.join(f'{each:>{NUMBER}}' for each in titles)}  {'kind':<{KIND}}"
    lines = [Text(header.rstrip(), style=QUIET)]
    return lines + [
        _line(place, block, room, beside=beside) for place, block in enumerate(profile.shown.blocks)
    ]


def _line(place: int, block: Block, room: int, *, beside: bool) -> Text:
    """Predictions, where there is room for them, stand right of what was measured."""
    name = Text(shorten(clean(block.name), room - 1))
    name.pad_right(room - name.cell_len)
    shown = [block.forward_ms, block.forward_ms_predicted, block.backward_ms, block.backward_ms_predicted]
    numbers = "".join(f"{number(each):>{NUMBER}}" for each in (shown if beside else shown[::2]))
    return Text.assemble((f"{place:<{INDEX}}", QUIET), name, numbers, (f"  {_kind(block)}", QUIET))


def _kind(block: Block) -> str:
    words = f"residual {block.residual.placement}" if block.residual else "plain"
    return shorten(f"{words}{' bypassed' if block.bypassed else ''}", KIND)
