# `make` alone lists the targets.
VENV ?= .venv
PYTEST_ARGS ?=
SCOREBOARD_ARGS ?=
export VENV

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
BUILT_FROM := tools/setup.sh pyproject.toml CMakeLists.txt $(shell find native -type f)
CXX_FILES = $(shell find native pyhangtrace tests -name '*.[ch]pp' -o -name '*.[ch]')

.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test test-full native-test scoreboard golden lint format bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON, TORCH_PIP_ARGS, PYTEST_ARGS, SCOREBOARD_ARGS (see README.md)"

setup: $(STAMPS)/setup ## Make .venv/bin/hangtrace ready, with all extras and without PyTorch
setup-test: $(STAMPS)/setup-test ## The same, and what the tests need

$(STAMPS)/setup: $(BUILT_FROM)
	tools/setup.sh
	@mkdir -p $(@D) && touch $@

$(STAMPS)/setup-test: $(BUILT_FROM)
	tools/setup.sh --test
	@mkdir -p $(@D) && touch $@ $(STAMPS)/setup

demo: setup ## Start a small real hang and let hangtrace explain it
	$(BIN)/hangtrace demo

native-test: setup-test ## The C++ unit tests
	$(BIN)/ctest --test-dir build/native/native --output-on-failure

test: native-test ## All tests but the long ones
	$(BIN)/python -m pytest -m "not slow and not benchmark" $(PYTEST_ARGS)

test-full: native-test ## All tests, the long ones too
	$(BIN)/python -m pytest -m "not benchmark" $(PYTEST_ARGS)

scoreboard: setup-test ## Every program of tests/hangs against hangtrace, and how it did
	$(BIN)/python -m tests.hangs.scoreboard $(SCOREBOARD_ARGS)

bench: setup-test ## Measure what a look costs
	$(BIN)/python -m pytest -m benchmark -s $(PYTEST_ARGS) tests/benchmarks

golden: setup-test ## Write the expected outputs of tests/golden again, to be read in the diff
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit/render

lint: setup-test ## Linters, formats and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy

format: setup-test ## Format all code
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean: ## Remove what was built (.venv too)
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
