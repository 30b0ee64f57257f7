# Paceline. `make demo` and `make test` are all a newcomer needs; each does its own set-up.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := .paceline/stamps
TORCH := torch==2.13.0
PYTHON ?= python3
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help setup demo test lint types e2e bench bench-recovery eval eval-sockets openapi lock clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## virtual environment, native probe, torch, console, Java runtime, Kafka jars
	@tools/setup.sh

demo: setup ## run the main job: a real 8-rank training job, a real fault, a verdict
	@$(VENV)/bin/paceline demo --fault h1

test: setup lint types ## lint, types, unit, integration, chaos and browser tests
	@tools/test.sh

lint: ## ruff, import rules, lengths, console lint
	@tools/lint.sh

types: ## mypy --strict and tsc
	@$(VENV)/bin/mypy
	@cd web && npm run --silent typecheck

e2e: setup ## the browser test alone
	@$(PY) -m pytest tests/e2e -q

bench: setup ## the figures of docs/performance.md
	@$(PY) tests/bench/run.py

bench-recovery: setup ## repair beside a whole restart and beside torchft, NVRx and torchrun (installs them, minutes)
	@$(PY) -m tests.bench.recovery_peers

eval: setup ## known faults in simulated jobs: right class, right root, how soon (hours)
	@$(VENV)/bin/paceline eval

eval-sockets: setup ## real faults between network namespaces, many times (root, 45 minutes)
	@$(PY) -m paceline.lab.sockets series

openapi: ## write openapi.json and the console's types from the running code
	@$(PY) -m paceline.api.openapi services/platform/openapi.json
	@cd web && npm run --silent generate

lock: ## requirements.lock from the pyproject files
	@$(VENV)/bin/uv lock -q --upgrade
	@$(VENV)/bin/uv export -q --all-packages --all-extras --no-emit-workspace --no-header -o requirements.lock > /dev/null

clean: ## remove everything that setup and the tests made here
	@rm -rf $(VENV) .paceline web/node_modules web/dist kernels/build kernels/src/paceline/probe/*.so
