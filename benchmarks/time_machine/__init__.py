"""Released wheels with known silent training bugs: does the check name the bug, and is it silent once it is fixed?

    python -m benchmarks.time_machine list                   the bugs, with their reports and versions
    python -m benchmarks.time_machine run [--only PATTERN]   check what has no stored answer; resumable
    python -m benchmarks.time_machine show                   run the tests of unreported findings, without Leadline
    python -m benchmarks.time_machine render                 fill docs/lab-notes/time-machine.md

The labels are nobody's here: each bug was reported in public, with a number and a date. Each wheel is installed into a
folder of its own that is deleted afterward, and is checked in a process of its own with that folder first on the path.
torch and everything else come from the environment that runs the benchmark, so torch is never installed again.
Results: benchmarks/results/time_machine.json.
"""
