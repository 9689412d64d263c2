"""The record types of the lab that `leadline report` can read and render."""

from __future__ import annotations

from leadline.lab.claims_page import LAB_FORMATS
from leadline.lab.phase.page import PHASE_FORMATS
from leadline.lab.phase.record import PHASE_SCHEMA, Phase
from leadline.lab.race.page import RACE_FORMATS
from leadline.lab.race.record import RACE_SCHEMA, Race
from leadline.records import LAB_SCHEMA, Lab
from leadline.report.saved import Kind

KINDS: dict[str, Kind] = {
    LAB_SCHEMA: (Lab.from_json, LAB_FORMATS),
    RACE_SCHEMA: (Race.from_json, RACE_FORMATS),
    PHASE_SCHEMA: (Phase.from_json, PHASE_FORMATS),
}
