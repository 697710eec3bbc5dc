# make up      install what is needed and start examples/two-clusters.yaml (MODEL=tiny-hybrid, PORT=8001, TOPOLOGY=file.yaml)
# make check   format, lint, types, import contracts, fast tests: under a minute
# make test    everything        make nightly    what takes many minutes
# make lock    resolve requirements.lock anew        make clean   remove what was made
# make up-vllm    the same with vllm serve as nodes, on CPUs: examples/vllm-two-clusters.yaml
# make test-vllm  the tests with vLLM                make setup-vllm, make lock-vllm   its environment, 3.5 GB
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm up up-vllm test test-vllm nightly lock lock-vllm clean
.PHONY: check check-format check-lint check-types check-imports check-tests-1 check-tests-2

TOPOLOGY ?= examples/two-clusters.yaml
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_VENV := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
VLLM_TOPOLOGY ?= examples/vllm-two-clusters.yaml
VLLM := PRFAAS_VLLM_PYTHON="$(CURDIR)/$(VLLM_VENV)/bin/python"
# `make -O` keeps the output of parallel checks apart, where make can do that.
APART := $(if $(filter output-sync,$(.FEATURES)),-Otarget)

help:
	@sed -n 's/^# make/make/p' Makefile

setup: $(READY)

$(READY): requirements.lock pyproject.toml tools/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup

setup-vllm: $(VLLM_READY)

$(VLLM_READY): requirements-vllm.lock pyproject.toml tools/setup-vllm tools/vllm-versions
	@PYTHON="$(PYTHON)" VENV="$(VLLM_VENV)" bash tools/setup-vllm

up: $(READY)
	@PRFAAS_END_WITH_PARENT=1 exec $(BIN)/prfaas up "$(TOPOLOGY)" $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)")

up-vllm: $(READY) $(VLLM_READY)
	@PRFAAS_END_WITH_PARENT=1 $(VLLM) exec $(BIN)/prfaas up "$(VLLM_TOPOLOGY)" $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)")

test-vllm: $(READY) $(VLLM_READY)
	@$(VLLM) $(BIN)/python -m pytest -m "vllm and not nightly" $(AGAIN)

test: $(READY)
	@$(BIN)/python -m pytest

nightly: $(READY)
	@$(VLLM) $(BIN)/python -m pytest -m nightly

check: $(READY)
	@$(MAKE) --no-print-directory -j3 -k $(APART) check-tests-1 check-tests-2 check-format check-lint check-types check-imports

check-format:
	@$(BIN)/ruff format --check

check-lint:
	@$(BIN)/ruff check

check-types:
	@$(BIN)/mypy

check-imports:
	@$(BIN)/lint-imports --no-logo

# In two halves that take as long, for two cores.
HALF := cluster gateway measure node sim transport
FAST := -q -m "not slow and not e2e and not nightly and not vllm" --ignore=tests/e2e --ignore=tests/vllm

check-tests-1:
	@$(BIN)/python -m pytest $(FAST) $(HALF:%=tests/%)

check-tests-2:
	@$(BIN)/python -m pytest $(FAST) -p no:cacheprovider $(HALF:%=--ignore=tests/%)

lock-vllm:
	@PYTHON="$(PYTHON)" bash tools/lock-vllm

lock:
	@PYTHON="$(PYTHON)" bash tools/lock

clean:
	@rm -rf $(VENV) $(VLLM_VENV) .venv-lock dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
