"""The claims of the articles, a file each, or a few that belong together."""
