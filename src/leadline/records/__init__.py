"""What Leadline knows, as frozen records without torch: a Trace, the Profile read off it, and Findings.

Every record survives JSON without loss. "Not measured" is null, and is never the same as zero.
"""

from leadline.records.codec import decode, encode
from leadline.records.profile import (
    Anomaly,
    Block,
    Coverage,
    Direction,
    Finding,
    Jump,
    Placement,
    Profile,
    Residual,
    Severity,
    Stream,
    Verdict,
)
from leadline.records.trace import (
    TRACE_SCHEMA,
    Gap,
    Module,
    Op,
    Optimizer,
    Parameter,
    ParamGroup,
    Phase,
    SourceKind,
    Stats,
    Trace,
    Units,
    Value,
)
from leadline.records.update import (
    UPDATE_SCHEMA,
    BlockStep,
    DepthRange,
    LinePoint,
    ParameterStep,
    Update,
)

__all__ = [
    "TRACE_SCHEMA",
    "UPDATE_SCHEMA",
    "Anomaly",
    "Block",
    "BlockStep",
    "Coverage",
    "DepthRange",
    "Direction",
    "Finding",
    "Gap",
    "Jump",
    "LinePoint",
    "Module",
    "Op",
    "Optimizer",
    "ParamGroup",
    "Parameter",
    "ParameterStep",
    "Phase",
    "Placement",
    "Profile",
    "Residual",
    "Severity",
    "SourceKind",
    "Stats",
    "Stream",
    "Trace",
    "Units",
    "Update",
    "Value",
    "Verdict",
    "decode",
    "encode",
]
