# Two commands, each from a fresh clone, each doing its own set-up: `make run` and `make test`.
# Set PYTHON to choose an interpreter (3.11 or later), VENV to put the environment elsewhere.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Processes that run tests, each a file at a time.
TESTERS ?= 2
# In the order of the folders: those that are last begun are many and short.
SPREAD := --dist loadfile --no-loadscope-reorder
# The notebook that searches longest: `make notebooks` and `make test-all` run it, `make test` does not.
LONG_NOTEBOOK := notebooks/6_what_a_step_remembers.ipynb
READY := $(VENV)/.ready
# Every process would otherwise compile all of PyTorch that it imports: 17 CPU seconds instead of 6.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all lint types imports unit notebooks docs format clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(READY)  ## make the environment (the others do so when it is missing or out of date)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "optfuse needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,docs,models]'
	@touch $@

run: $(READY)  ## optimize GPT-2 and ResNet-50, forward and backward, and verify the emitted kernels
	@$(BIN)/optfuse demo models/gpt2.py models/resnet.py

test: lint imports  ## everything that a change must pass
	@$(MAKE) --no-print-directory -j2 types unit
	@$(MAKE) --no-print-directory -j2 notebooks docs LEFT_OUT=--ignore=$(LONG_NOTEBOOK)

test-all: lint imports types notebooks docs  ## the same with slow tests and every example: hours on two cores
	@$(BIN)/pytest -q -m "not gpu" --hypothesis-profile=nightly -n $(TESTERS) $(SPREAD)

lint: $(READY)  ## ruff: rules and format
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: $(READY)  ## pyright over optfuse/
	@$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(READY)  ## import-linter: which package may import which
	@$(BIN)/lint-imports --no-logo >$(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log; exit 1; }

unit: $(READY)  ## pytest, without the tests that need a GPU and those marked slow
	@$(BIN)/pytest -q -m "not gpu and not slow" -n $(TESTERS) $(SPREAD)

notebooks: export OMP_NUM_THREADS ?= 1
notebooks: $(READY)  ## run the notebooks; what they show is refreshed by notebooks/refresh.py
	@$(BIN)/pytest -q --nbmake --nbmake-timeout=300 -n $(TESTERS) $(LEFT_OUT) notebooks

docs: $(READY)  ## build the documentation site into out/site; any warning fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
