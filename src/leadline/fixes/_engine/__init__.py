"""The engine that proposes, applies, proves and undoes fixes."""
