# make up      install what is needed and start examples/two-clusters.yaml (MODEL=tiny-hybrid, PORT=8001, TOPOLOGY=file.yaml)
# make check   format, lint, types, import contracts, fast tests: under a minute
# make test    everything        make nightly    what takes many minutes
# make lock    resolve requirements.lock anew        make clean   remove what was made
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup up test nightly check check-format check-lint check-types check-imports check-tests lock clean

TOPOLOGY ?= examples/two-clusters.yaml
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# `make -O` keeps the output of parallel checks apart, where make can do that.
APART := $(if $(filter output-sync,$(.FEATURES)),-Otarget)

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(READY)

$(READY): requirements.lock pyproject.toml tools/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup

up: $(READY)
	@exec $(BIN)/prfaas up "$(TOPOLOGY)" $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)")

test: $(READY)
	@$(BIN)/python -m pytest

nightly: $(READY)
	@$(BIN)/python -m pytest -m nightly

check: $(READY)
	@$(MAKE) --no-print-directory -j3 -k $(APART) check-format check-lint check-types check-imports check-tests

check-format:
	@$(BIN)/ruff format --check

check-lint:
	@$(BIN)/ruff check

check-types:
	@$(BIN)/mypy

check-imports:
	@$(BIN)/lint-imports --no-logo

check-tests:
	@$(BIN)/python -m pytest -q -m "not slow and not e2e and not nightly"

lock:
	@PYTHON="$(PYTHON)" bash tools/lock

clean:
	@rm -rf $(VENV) .venv-lock dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
