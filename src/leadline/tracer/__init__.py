"""The tracer: the only code that touches a live model. It records one forward and backward pass as a Trace."""
