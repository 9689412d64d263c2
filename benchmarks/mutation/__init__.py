"""Which small mistakes in the source the fast tests notice.

    python -m benchmarks.mutation.executed_lines     record which test executes which line; once, and after tests change
    python -m benchmarks.mutation run [FOLDER]       run the mutants of the sample that have no result yet
    python -m benchmarks.mutation longer [TESTS]     give the tests of survivors more time; still a first result
    python -m benchmarks.mutation again [TESTS]      run survivors again after tests were written and recorded
    python -m benchmarks.mutation render             write the table of the docs

A *mutant* changes one comparison, sign, number or connective in one file. `changes.py` draws a fixed random sample. The
examples that checks are tested on, text layout, and code that no test machine can run are not mutated. Each mutant runs
in a forked child against the fast tests that execute its line, those of its own folder first and fast ones first, until
one fails or the time is used up. A test that fails without the mutant too does not count. A mutant that no test notices
survives.

Results are stored after each mutant in benchmarks/results/mutation.json: `first` says whether the tests noticed it when
it was drawn, before tests were written for survivors; `noticed` is the last result; `test` is the test that failed.
"""
