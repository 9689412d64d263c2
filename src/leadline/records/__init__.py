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
from leadline.records.symmetry import EpsSite, Generator, ScaledTensor, Symmetry
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

__all__ = [
    "TRACE_SCHEMA",
    "Anomaly",
    "Block",
    "Coverage",
    "Direction",
    "EpsSite",
    "Finding",
    "Gap",
    "Generator",
    "Jump",
    "Module",
    "Op",
    "Optimizer",
    "ParamGroup",
    "Parameter",
    "Phase",
    "Placement",
    "Profile",
    "Residual",
    "ScaledTensor",
    "Severity",
    "SourceKind",
    "Stats",
    "Stream",
    "Symmetry",
    "Trace",
    "Units",
    "Value",
    "Verdict",
    "decode",
    "encode",
]
