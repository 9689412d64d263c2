"""Experiments: the claims of four articles, races of residual schemes, phase diagrams and sweeps."""
