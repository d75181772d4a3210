# Breakeven. Needs: make, Python 3.11, and for experiments git. `make help` lists the targets.
# Pass ARGS="..." to params and sweep, PIP_ARGS="..." to pip, PYTEST_ARGS="..." to pytest.
SHELL := /bin/sh
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# DVC's stage commands call plain `python`: it must be the environment's.
export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
# DVC refuses to make an experiment without a git identity, and an empty home has none.
export GIT_AUTHOR_NAME ?= $(shell git config user.name 2>/dev/null || echo breakeven)
export GIT_AUTHOR_EMAIL ?= $(shell git config user.email 2>/dev/null || echo breakeven@localhost)
export GIT_COMMITTER_NAME ?= $(GIT_AUTHOR_NAME)
export GIT_COMMITTER_EMAIL ?= $(GIT_AUTHOR_EMAIL)

ARGS ?=
PIP_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2

.PHONY: help env repro test lint format params sweep ui lock clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

env: $(VENV)/.installed ## the environment in .venv, exactly as requirements.lock pins it

$(VENV)/.installed: pyproject.toml requirements.lock
	@python=; for candidate in python3.11 python3 python; do \
	  for found in $$(which -a $$candidate 2>/dev/null); do \
	    case $$found in "$(BIN)"/*) continue;; esac; \
	    if "$$found" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
	      python=$$found; break 2; fi; done; done; \
	if [ -z "$$python" ]; then \
	  echo "error: Breakeven needs Python 3.11, and none is on the PATH. Install it, then run make again." >&2; exit 2; fi; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "error: $$python lacks venv or ensurepip. Install them (Debian, Ubuntu: python3.11-venv)." >&2; exit 2; fi; \
	if ! "$(BIN)/python" -m pip --version >/dev/null 2>&1; then \
	  echo "creating $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); fi
	"$(BIN)/python" -m pip install $(PIP_ARGS) --disable-pip-version-check -r requirements.lock
	"$(BIN)/python" -m pip install $(PIP_ARGS) --disable-pip-version-check --no-deps --no-build-isolation -e '.[dev]'
	@touch $@

repro: env ## run the pipeline (what is unchanged is skipped), then print the verdict
	@if git rev-parse --git-dir >/dev/null 2>&1; then \
	  ! grep -qs no_scm .dvc/config.local || "$(BIN)/dvc" config --local --unset core.no_scm; \
	else "$(BIN)/dvc" config --local core.no_scm true; fi
	"$(BIN)/dvc" repro $(ARGS)
	@"$(BIN)/breakeven" verdict

test: lint ## ruff, mypy and all tests
	"$(BIN)/python" -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: env ## ruff (rules and format) and mypy --strict
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy" --strict src

format: env ## let ruff mend what it can
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

params: env ## compose conf/ into params.yaml: make params ARGS="hardware=cpu_fp32"
	"$(BIN)/breakeven" params $(ARGS)

sweep: env ## a grid of experiments: make sweep ARGS="-m drafter=ngram,early_exit speculate.k=[1],[4]"
	"$(BIN)/breakeven" sweep $(ARGS)

ui: env ## MLflow, with the runs of this repository
	"$(BIN)/breakeven" ui $(ARGS)

lock: env ## write requirements.lock from what .venv holds (after changing pins in pyproject.toml)
	@{ sed -n '/^#/p;/^[^#]/q' requirements.lock; "$(BIN)/python" -m pip freeze --all --exclude-editable \
	  | sed -n 's/^\([A-Za-z0-9._-]*==[^+ ]*\).*/\1/p' | grep -v -i -e '^pip==' -e '^breakeven==' | sort -f; } > requirements.lock.tmp
	@mv requirements.lock.tmp requirements.lock
	@touch $(VENV)/.installed

clean: ## remove caches and build outputs; keeps .venv, models (data/models), MLflow and reports
	rm -rf build outputs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
	[ ! -d data ] || find data -mindepth 1 -maxdepth 1 -not -name models -exec rm -rf {} +
