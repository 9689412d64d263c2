"""Charts of the page model as inline SVG, and as lines of characters. Knows no record."""
