"""Sums and products. What they are depends on their operands: see `leadline.ops.resolve`."""

from leadline.ops.family import Family, words

ADD = Family(kind="add", names=words("add sub rsub addcmul addcdiv lerp"))
MULTIPLY = Family(kind="multiply", names=words("mul div neg floor_divide"))
