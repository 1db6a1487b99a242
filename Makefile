# `make` alone lists the targets.
VENV ?= .venv
PYTEST_ARGS ?=
SCOREBOARD_ARGS ?=
KERNELS_ARGS ?=
FUZZ_ITERATIONS ?= 200000
export VENV

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
BUILT_FROM := tools/setup.sh pyproject.toml CMakeLists.txt $(shell find native -type f)
CXX_FILES = $(shell find native pyhangtrace tests -name '*.[ch]pp' -o -name '*.[ch]')

.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test test-full test-engines test-kernels native-test tsan fuzz scoreboard golden lint format bench clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON, TORCH_PIP_ARGS, PYTEST_ARGS, SCOREBOARD_ARGS, KERNELS_ARGS, FUZZ_ITERATIONS (see README.md)"

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

fuzz: setup-test ## The readers of foreign bytes over damaged input, with sanitizers
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1" \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DHT_BUILD_TESTS=ON -DHT_BUILD_BINDINGS=OFF -DHT_SANITIZE=ON \
	    -DHT_FUZZ_ITERATIONS=$(FUZZ_ITERATIONS) -DHT_FUZZ_TIMEOUT=7200
	$(BIN)/cmake --build build/fuzz --target fuzzers
	$(BIN)/ctest --test-dir build/fuzz/native -L fuzz --verbose

tsan: setup-test ## Looks by several threads, with the thread sanitizer
	$(BIN)/cmake -S . -B build/tsan -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1" \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DHT_BUILD_TESTS=ON -DHT_BUILD_BINDINGS=OFF -DHT_SANITIZE_THREADS=ON
	$(BIN)/cmake --build build/tsan --target test_workers test_parallel_looks
	$(BIN)/ctest --test-dir build/tsan/native -R "workers|parallel" --output-on-failure

test: native-test ## All tests but the long ones
	$(BIN)/python -m pytest -m "not slow and not benchmark" $(PYTEST_ARGS)

test-full: native-test ## All tests, the long ones too
	$(BIN)/python -m pytest -m "not benchmark and not engines" $(PYTEST_ARGS)

test-engines: setup-test ## Servers of vLLM and SGLang that hang (an hour, 5 GB in ~/.cache)
	$(BIN)/python -m tests.engines.venvs
	$(BIN)/python -m pytest -m engines $(PYTEST_ARGS) tests/engines

scoreboard: setup-test ## Every program of tests/hangs against hangtrace, and how it did
	$(BIN)/python -m tests.hangs.scoreboard $(SCOREBOARD_ARGS)

test-kernels: setup-test ## Hangs on other kernels, in virtual machines (downloads them; see docs/kernels.md)
	$(BIN)/python -m tests.kernels $(KERNELS_ARGS)

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
