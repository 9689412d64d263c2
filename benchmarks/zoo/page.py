"""The tables of docs/zoo.md."""

MARKS = {}
