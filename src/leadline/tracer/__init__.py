"""The only code that touches a live model: one forward and backward pass, recorded as a Trace."""
