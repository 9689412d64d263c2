"""The executor without workers: one bundle after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leadline.sweeps.outcomes import Bundle, Outcome, Work, attempt


def in_process(work: Work, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Outcome]]:
    """Nothing can die here but everything."""
    for index, bundle in enumerate(bundles):
        yield index, attempt(work, bundle)
