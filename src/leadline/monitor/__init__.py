"""The monitor: watch a training run within an overhead budget without changing one bit of it."""
