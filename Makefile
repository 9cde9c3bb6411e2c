# The one door: every target sets up what it needs, so each works in a fresh clone.
#
# JOBS compilers run at once (default: what cores and memory allow), and TEST_JOBS tests (default:
# three for two cores, because tests of several processes wait for each other).
JOBS ?= $(shell ./setup.sh --jobs)
CORES = $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
TEST_JOBS ?= $(shell echo $$((($(CORES) * 3 + 1) / 2)))
PREFIX ?= /usr/local
PYTHON ?= python3
# The Python that setup.sh found or made torch in; empty before `setup` has run.
TORCH_PYTHON = $(shell sed -n 's/^python=//p' build/.penstock-torch)
CTEST = ctest --output-on-failure --no-tests=error -j $(TEST_JOBS) --test-dir
LINT = .venv-lint/bin
CPP_FILES = git ls-files --cached --others --exclude-standard '*.h' '*.cpp'
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := build
.PHONY: build setup py wheel package stubs demo test test-all fast dev asan asan-plan tsan fuzz \
  soak bench bench-peers published golden lint format clang-tidy check-all install ci clean help

build: ## Set up and build a release into build/, programs in build/bin (the default)
	@./setup.sh release
	cmake --build build -j $(JOBS)

setup:
	@./setup.sh release

py: setup ## Build the Python package, and install it into .venv (or the Python of PENSTOCK_PYTHON)
	@test -z "$(TORCH_PYTHON)" || \
	  test -n "$(filter %/.venv/bin/python,$(TORCH_PYTHON))$(PENSTOCK_PYTHON)" || \
	  { echo "make py: $(TORCH_PYTHON) is not this folder's; to install into it all the same:" \
	    "PENSTOCK_PYTHON=$(TORCH_PYTHON) make py" >&2; exit 2; }
	@$(MAKE) package
	wheel=$$($(TORCH_PYTHON) tools/python/wheel.py build build/wheel penstock) && \
	  $(TORCH_PYTHON) -m pip install --disable-pip-version-check --force-reinstall --no-deps $$wheel

wheel: setup ## Make wheels for pip in build/wheel: penstock; penstock-plan, without torch
	@$(MAKE) package
	@wheels=$$($(TORCH_PYTHON) tools/python/wheel.py build build/wheel) && du -h $$wheels

package:
	@test -n "$(TORCH_PYTHON)" || { echo "make: LibTorch comes without a Python, which the Python" \
	  "package needs; unset Torch_DIR" >&2; exit 2; }
	@./setup.sh --python-headers $(TORCH_PYTHON)
	cmake --build build -j $(JOBS) --target penstock_python

stubs: setup ## Rewrite the stubs of the Python package's extension modules, from build/
	cmake --build build -j $(JOBS) --target penstock_python
	$(TORCH_PYTHON) tools/python/stubs.py build/python

demo: setup ## Build the programs, and train a small GPT: 2 pipeline stages x 2 replicas
	cmake --build build -j $(JOBS) --target penstock_program penstock_runtime_program
	build/bin/penstock train examples/gpt.json --nproc 4

test: build ## Build all, and run the tests that take minutes together
	$(CTEST) build -LE '^long$$'

test-all: build ## The same, and the tests that take long
	$(CTEST) build

fast: ## Planning layers only: no torch, seconds
	@./setup.sh plan-only
	cmake --build build-plan -j $(JOBS)
	$(CTEST) build-plan

dev: ## Debug build in build-dev/, all tests
	@./setup.sh dev
	cmake --build build-dev -j $(JOBS)
	$(CTEST) build-dev

asan: ## All tests with the address and undefined-behaviour sanitizers
	@./setup.sh asan
	cmake --build build-asan -j $(JOBS)
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) build-asan

asan-plan: ## The planning layers' tests with the same two, without torch
	@./setup.sh asan-plan
	cmake --build build-asan-plan -j $(JOBS)
	UBSAN_OPTIONS=print_stacktrace=1 $(CTEST) build-asan-plan

tsan: ## All tests with the thread sanitizer
	@./setup.sh tsan
	cmake --build build-tsan -j $(JOBS)
	TSAN_OPTIONS=suppressions=$(CURDIR)/tests/tsan_suppressions.txt:die_after_fork=0 \
	  $(CTEST) build-tsan

fuzz: ## Feed every parser a million made-up inputs, at most 10 CPU minutes each
	@./setup.sh fuzz
	cmake --build build-fuzz -j $(JOBS)
	$(PYTHON) tests/fuzz/campaign.py build-fuzz

soak: build ## Kill and stop ranks, fail disks and networks, train for long; many times
	$(PYTHON) tests/process/soak.py
	$(PYTHON) tests/process/comeback_soak.py
	$(PYTHON) tests/process/adapt_soak.py
	$(PYTHON) tests/process/network_soak.py || test $$? = 77
	$(PYTHON) tests/torn/errors_soak.py
	$(PYTHON) tests/process/stop_soak.py
	PENSTOCK_TORCH_PYTHON=$(TORCH_PYTHON) $(PYTHON) tests/process/two_users_soak.py
	$(PYTHON) tests/process/fault_soak.py
	$(PYTHON) tests/process/seccomp_soak.py || test $$? = 77

bench: build ## Measure against the bare loop, and against the peers if they are set up
	cmake --build build -j $(JOBS) --target benchmarks
	$(PYTHON) bench/run.py

bench-peers: ## Install the systems that `make bench` compares with, into bench/.venv-peers
	bench/setup_peers.sh

published: ## Plan published runs, and print how far off each table is
	@./setup.sh plan-only
	cmake --build build-plan -j $(JOBS) --target penstock_program
	PENSTOCK_BUILD=build-plan $(PYTHON) tests/published/replay.py

gpu: ## On a machine with a CUDA device and torch: build, test and measure there
	$(PYTHON) bench/gpu.py

gpu-kit: ## What such a machine may lack (headers, GoogleTest), into .gpu-kit, to take along
	tools/gpu_kit.sh

golden: build ## Rewrite the texts in tests/golden/, to be reviewed as a diff
	PENSTOCK_UPDATE_GOLDEN=1 $(CTEST) build

lint: $(LINT)/ready ## Check format and rules, change nothing
	$(PYTHON) tools/tidy.py
	$(CPP_FILES) | xargs -r $(LINT)/clang-format --dry-run --Werror
	$(LINT)/ruff check .
	$(LINT)/ruff format --check .

format: $(LINT)/ready ## Format C++ and Python files in place
	$(CPP_FILES) | xargs -r $(LINT)/clang-format -i
	$(LINT)/ruff check --fix .
	$(LINT)/ruff format .

clang-tidy: $(LINT)/ready ## Static analysis of the planning layers
	@./setup.sh plan-only
	sed -n 's|^ *"file": "\(.*/penstock/.*\)".*|\1|p' build-plan/compile_commands.json | \
	  xargs -r -n 1 -P $(JOBS) $(LINT)/clang-tidy -p build-plan --quiet

check-all: lint test-all fast asan tsan soak ## These, the slowest last (not fuzz, nor clang-tidy)

install: build ## Install under PREFIX (default /usr/local)
	cmake --install build --prefix $(PREFIX)

ci: ## What the continuous integration runs
	.ci/run

clean: ## Remove every build folder; .venv and runs stay
	rm -rf build build-plan build-dev build-asan build-asan-plan build-tsan build-fuzz \
	  build-py build-times build-matrix

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

$(LINT)/ready: tools/lint_requirements.txt
	$(PYTHON) -m venv --clear .venv-lint
	$(LINT)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
