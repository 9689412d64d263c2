"""Renderers: a page as text, Markdown, HTML or a notebook card, and the findings of reports in machine formats."""
