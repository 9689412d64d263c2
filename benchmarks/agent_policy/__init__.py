"""A policy without any model that only follows Leadline's own "next" lines: how many broken scripts does it repair?

    python -m benchmarks.agent_policy run                measure what has no result yet
    python -m benchmarks.agent_policy keep-first         keep the answers as the first ones, and measure all again
    python -m benchmarks.agent_policy forget-unapplied   drop the results of cases without a diff
    python -m benchmarks.agent_policy render             fill docs/lab-notes/agent-policy.md

Each case is one of eight healthy training scripts (`programs/`) with one mistake of the kind that debugging quizzes
show (`bugs.py`). The truth is the score that the script prints, measured on held-out data: a case is right if it goes
at least `RIGHT_SHARE` of the way from the score of a guess to that of its healthy twin. Cases are split by a hash of
their names: while fixes and diffs were improved, nobody looked at the held-out half.
"""
