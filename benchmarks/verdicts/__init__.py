"""The verdict benchmark: training problems with a known outcome, and how well it is foretold. See README.md."""
