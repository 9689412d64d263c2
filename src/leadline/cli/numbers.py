"""Numbers on the command line, with commas between them."""

from __future__ import annotations

import click


class Numbers(click.ParamType[tuple[float, ...]]):
    """`1e-3,3e-3,1e-2`."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1e-3,3e-3,1e-2", param, ctx)
