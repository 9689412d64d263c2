"""Pictures of numbers as inline SVG. Knows no record, so that records can show themselves in a notebook.

numbers    three significant digits, and a spelling for what is no number
scale      logarithmic and linear axes: where things lie, and where the ticks are
svg        elements, escaped
chart      lines over depth, with bands, and marks for what has no place on the axis
bars       values side by side, or contributions that add up
ruler      a few values on one axis
multiples  small charts in a grid, under a heading: what a notebook shows
"""
