"""Races: residual schemes trained on the same data with the same budget, over a grid of depths and learning rates."""
