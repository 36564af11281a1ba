# Everything a developer or CI needs. Each target sets up .venv by itself: a machine needs only
# Python >= 3.11 and make. Name another interpreter with `make PYTHON=/path/to/python3.12 ...`.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
DEMO_STAMP := $(VENV)/.installed-demo
EXTRAS := torch,hf,lightning,keras,sklearn,mpi,visa,parquet,postgres,tensorboard,figures,report,serve,numba,jax,ray,tune,analyze
# The demo trains with scikit-learn and predicts a workload that was traced before: no PyTorch.
DEMO_EXTRAS := sklearn,report,serve
SOURCES := src tests benchmarks examples
FOUND_SOURCES := $(wildcard $(SOURCES))
BENCHMARKS ?= $(wildcard benchmarks/measure_*.py) $(addprefix benchmarks/,campaign_speed.py cap_finder.py cap_overhead.py document_004.py engine_speed.py kernels.py lever_kills.py predict_h200.py predict_speed.py tune_overhead.py)
BENCH_OUT := build/bench
# Five on two cores: tests wait for programs, sockets and clocks for about 40% of their time, and
# four left a sixth of the processor idle.
TEST_WORKERS ?= 5
DEMO_FOLDER ?= build/demo

# Compiled modules are written and used again, whatever the shell says: tests and demo start thousands
# of programs.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs package test check static format format-check lint types ratchet imports lock audit bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | \
	    awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install Wattloop with what tests need

demo: $(DEMO_STAMP)  ## the whole loop without a GPU: measure, tune, sweep, predict, simulate, a study, reports
	@sh scripts/demo.sh $(BIN) $(DEMO_FOLDER)

test: $(STAMP)  ## run the tests, with a PostgreSQL server of their own where it is installed
	sh scripts/with-postgres.sh $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: static test  ## format, lint, types, import rules, ratchet, site, package and tests: what CI runs

static: types docs package format-check lint imports ratchet  ## everything of `check` but the tests

docs: $(DOCS_STAMP)  ## build the documentation site into build/site; broken links and anchors fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python scripts/check_site.py build/site

package: $(DOCS_STAMP)  ## build wheel and source archive into build/dist, and check them
	@rm -rf build/dist build/lib && mkdir -p build
	$(BIN)/python -m build --outdir build/dist . >build/package.log 2>&1 || { cat build/package.log; exit 1; }
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist/*.whl

format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff format $(FOUND_SOURCES)
	$(BIN)/ruff check --fix $(FOUND_SOURCES)

format-check: $(STAMP)  ## check the format
	$(BIN)/ruff format --check $(FOUND_SOURCES)

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check $(FOUND_SOURCES)

types: $(STAMP)  ## mypy, strict on src
	$(BIN)/mypy

ratchet: $(STAMP)  ## sizes and names of the tree that may only shrink
	@$(BIN)/python scripts/ratchet.py

imports: $(STAMP)  ## the layers of packages: imports point down only
	$(BIN)/lint-imports

lock: $(STAMP)  ## write constraints.txt: the newest versions that fit, resolved with Python 3.11
	$(BIN)/python scripts/lock.py $(EXTRAS)

audit: $(STAMP)  ## known vulnerabilities of the versions in constraints.txt (asks a service in the network)
	$(BIN)/python scripts/audit.py

bench: $(STAMP)  ## run the benchmarks; results as JSON under build/bench
	@mkdir -p $(BENCH_OUT)
	@for file in $(BENCHMARKS); do \
	    echo "== $$file"; \
	    $(BIN)/python $$file --json $(BENCH_OUT)/$$(basename $$file .py).json || exit 1; \
	done

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than everything that decides what is installed. Each target installs what it
# needs into the one environment, so that the demo does not wait for what only the tests use.
define ENVIRONMENT
@if ! $(BIN)/python -c '' 2>/dev/null; then \
    python=$$(sh scripts/find-python.sh $(PYTHON)) || exit 1; \
    echo "creating $(VENV) with $$python"; \
    rm -rf $(VENV) && "$$python" -m venv $(VENV); \
fi
endef

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt
	$(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt \
	    --requirement requirements-dev.txt --editable '.[$(EXTRAS)]'
	@# Compiled by every core instead of one; packages have templates that are not Python.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $(DEMO_STAMP) $(STAMP)

# Modules are compiled when they are first used: a tenth of what is installed.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt \
	    --editable '.[$(DEMO_EXTRAS)]'
	@touch $(DEMO_STAMP)

$(DOCS_STAMP): $(STAMP) requirements-docs.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-docs.txt
	@touch $(DOCS_STAMP)
