"""Phase diagrams: which of thousands of small networks learn the digits, over depth and one other quantity."""
