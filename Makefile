# Every target works on a fresh clone with git, make and Python 3.11 or newer, and needs no other tool.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
JOBS    ?= 3
STAMP   := $(VENV)/.ready
APPS    := --app examples/jobs.py --app examples/crontab
PIP     := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq

.DEFAULT_GOAL := help
.PHONY: help setup up test test-long explore check bench mutants moved

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with duly in it (again only when the requirements change)

up: setup ## embedded PostgreSQL, scheduler, worker and the example jobs; Ctrl-C drains and stops
	@$(BIN)/duly up $(APPS)

test: check ## everything except the long tests, on a PostgreSQL that the tests start themselves
	@$(BIN)/python -m pytest -m "not long" --numprocesses=$(JOBS) --dist=loadfile

test-long: setup ## only the long tests: faults, chaos, a year of downtime
	@$(BIN)/python -m pytest -m long

explore: setup ## the property tests with examples that no run has seen; what fails is shown with its way back
	@$(BIN)/python -m pytest --hypothesis-profile=explore -m "not long" --numprocesses=$(JOBS) tests/properties \
	  tests/models tests/unit/test_import_fuzz.py tests/unit/test_crontab.py

check: setup ## lint, format, types, direction of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --diff --quiet .; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > $(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log; exit 1; }

mutants: setup ## break a copy of duly in many small ways; each has to be noticed by its test (minutes)
	@$(BIN)/python -m tests.mutants

bench: setup ## measure burst and steady load, each beside its reference in the same run
	@$(BIN)/python -m bench burst
	@$(BIN)/python -m bench steady

# A copied or moved tree has a .venv that still runs the old place; the stamp knows where it was made.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): moved
endif

$(STAMP): pyproject.toml requirements/runtime.txt requirements/develop.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "duly needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; }
	@test ! -e $(STAMP) || test "$$(cat $(STAMP))" = "$(CURDIR)" || rm -rf $(VENV)
	@test -x $(BIN)/python && $(PIP) --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) (once; usually less than a minute)"
	@$(PIP) install -r requirements/develop.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@printf '%s' '$(CURDIR)' > $@
