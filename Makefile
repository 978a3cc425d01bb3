# Every target makes its own .venv when there is none; nothing is installed outside it.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# Two stamps: what `make demo` needs, and on top of it the tools for tests, types and docs.
READY_DEMO := $(VENV)/.ready-demo
READY := $(VENV)/.ready
PIP_INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
# One torch thread per worker: two workers on two cores are faster than two threads each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# One worker runs all tests of a file, because they share fixtures. In the order of conftest.py:
# long files first.
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-slow lint docs dist bench clean

demo: $(READY_DEMO)
	@OMP_NUM_THREADS=1 $(BIN)/python -m reproduction all --scale quick --out runs/demo --jobs $(JOBS)

test: lint
	$(PYTEST) -n $(JOBS) $(BY_FILE) -q

# The slow tests too, with coverage: the table that docs/coverage.md includes.
test-slow: $(READY)
	$(PYTEST) -n $(JOBS) $(BY_FILE) -q -m "slow or not slow" --cov --no-cov-on-fail \
	  --cov-report=markdown:docs/coverage.txt

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Runs the gallery, too: an example that was not changed since the last build is not run again.
docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# Wheel and sdist in dist/, tried in an environment without extras.
dist: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python .ci/package.py

# Numbers to benchmarks/results, pages to docs; the races and the estimators take hours.
# BEFORE=SRC compares minimax with another version, whose src folder it is.
bench: $(READY)
	$(BIN)/python benchmarks/startup.py --write
	$(BIN)/python benchmarks/optimizer_steps.py --write
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/minimax_calls.py --max-calls 4000 --jobs 2 \
	  $(if $(BEFORE),--before $(BEFORE)) --write
	$(BIN)/python benchmarks/batches.py --write
	$(BIN)/python benchmarks/robust_steps.py --write
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/ranks.py --write
	$(BIN)/python benchmarks/summary.py --write

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY_DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "neada needs Python 3.11 or newer; set PYTHON=python3.11 (or newer)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e ".[reproduction]"
	@touch $@

$(READY): $(READY_DEMO)
	$(PIP_INSTALL) -e ".[dev]"
	@touch $@
