"""Small training programs in the shapes that people write, for tests of `leadline run`. Each prints its results."""
