# make                      this list
# make demo [ARGS=--once]   the worked example, everything included
# make test [ARGS=...]      all tests
# make fault [ARGS=...]     the fault matrix in its long form, about an hour (--row 4, --times 3, --server redis)
# make model [ARGS=...]     the functions' model in its long form
# make soak [HOURS=1]       work under kills, restarts, standstills and lost replies, and what is lost of it
# make numa [KERNEL=/]      the units on an emulated machine of two memory nodes and control groups v2, ten minutes
# make check                lint, format, types, import contracts
# make bench [ARGS=...]     plain Celery beside agentq on this machine
#
# Everything is installed into .venv, once; nothing is written outside of this folder but the user's
# own state (~/.local/state/agentq, ~/.cache/agentq) and temporary files.

PYTHON ?= python3
ARGS   ?=
HOURS  ?= 1
SEED   ?= 20
KERNEL ?= /
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test fault soak model numa check bench clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(STAMP)
	@$(BIN)/agentq demo $(ARGS)

# Two at a time, since tests mostly wait; a file's tests together, which share what it has started.
test: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile $(ARGS)

fault: $(STAMP)
	@$(BIN)/python -m tests.fault $(ARGS)

model: $(STAMP)
	@$(BIN)/python -m pytest -q --hypothesis-profile=fault --timeout=0 tests/integration/test_functions_model.py $(ARGS)

soak: $(STAMP)
	@$(BIN)/python -m tests.fault.soak --hours $(HOURS) --seed $(SEED) $(ARGS)

numa: $(STAMP)
	@AQ_TEST_KERNEL=$(KERNEL) $(BIN)/python -m pytest -q -s tests/fault/test_numa_machine.py $(ARGS)

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests/typing
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	@$(BIN)/agentq bench $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(STAMP): pyproject.toml .ci/install
	@.ci/install $(PYTHON) $(VENV)
	@touch $@
