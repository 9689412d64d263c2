"""The claims of the articles. A file holds one claim or a few that belong together."""
