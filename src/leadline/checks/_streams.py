"""Networks with several streams: the chains that checks read, and their examples."""

from __future__ import annotations

from typing import Any

from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import Profile, StreamMixing


def mixings_of(profile: Profile) -> tuple[StreamMixing, ...]:
    return profile.parts.mixings if profile.parts is not None else ()


def between(mixing: StreamMixing) -> str:
    """Where the streams are mixed: the first module, and the last one if it is another."""
    first = mixing.site.module or "the model"
    return first if mixing.last in ("", mixing.site.module) else f"{first} … {mixing.last}"


def streams_example(**fields: Any) -> Profile:
    """A healthy network with four streams, changed by `fields`."""
    plain: dict[str, Any] = {
        "site": SITE,
        "last": "decoder",
        "streams": 4,
        "layers": 24,
        "forward_gain": 1.0,
        "backward_gain": 1.2,
        "row_error": 0.01,
        "column_error": 0.0,
        "is_normalized": True,
        "spread": 0.1,
        "gradient_spread": 0.2,
        "writes": 23,
    }
    return with_parts(mixings=(StreamMixing(**{**plain, **fields}),))
