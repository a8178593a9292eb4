# What a stranger needs: make demo, make demo-down, make test. Everything else is for developers.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
export DEBIAN_FRONTEND := noninteractive
# Ansible's programs call each other by name.
ANSIBLE := PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: help venv prepare demo demo-down demo-purge test test-unit test-integration test-e2e lint role-docs molecule bench fuzz fuzz-guided chaos kill-points fleet-cuts lab-up

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.venv/.ready: setup.cfg pyproject.toml tests/lab/python.sh
	@bash tests/lab/python.sh .venv
	@touch $@

venv: .venv/.ready ## the virtual environment in .venv

demo: venv ## a control plane and three hosts on this machine, seven tasks, a table of what happened
	@$(BIN)/python -m tests.demo up

demo-down: venv ## take the demo away; only the cache that it names stays
	@$(BIN)/python -m tests.demo down

demo-purge: venv ## take the demo and its cache away
	@$(BIN)/python -m tests.demo purge

prepare: venv ## install the Debian packages that lab and tests need (as root)
	@$(BIN)/python -m tests.lab prepare

lint: venv ## ruff, mypy, shellcheck, ansible-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	shellcheck tests/lab/python.sh tests/device/check .ci/run runtime/agent/drivers/process/*.sh molecule/shared/*.sh
	$(ANSIBLE) ansible-playbook --syntax-check $(wildcard playbooks/*.yml) >/dev/null
	$(ANSIBLE) ansible-lint --offline -q

role-docs: venv ## the tables of variables in the roles' READMEs, from their argument specs
	$(BIN)/python -m tests.role_tables

test: prepare lint ## everything but the long runs
	$(BIN)/python -m tests.lanes

test-unit: venv ## pure decisions only, in seconds
	$(BIN)/python -m pytest tests/unit

test-integration: prepare ## each part against real neighbours
	$(BIN)/python -m pytest tests/integration

test-e2e: prepare ## the whole on the lab's fleet
	$(BIN)/python -m pytest tests/e2e

MINUTES ?= 10
ROUNDS ?= 3
POINTS ?= 10

SECONDS_EACH ?= 120

fuzz: venv ## each parser of vendors' tools against changed texts for SECONDS_EACH seconds
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_EACH)

fuzz-guided: venv ## the same led by the branches that are reached; installs the extra `fuzz`
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.guided --seconds $(SECONDS_EACH)

chaos: lab-up ## random faults against a working fleet for MINUTES, and the invariant report
	$(BIN)/python -m tests.faults.chaos --minutes $(MINUTES)

kill-points: lab-up ## the agent killed ROUNDS times at every moment of a task's way
	$(BIN)/python -m tests.faults.kill_points --rounds $(ROUNDS)

molecule: prepare ## all scenarios of molecule/ on lab nodes (long), or those that SCENARIO names
	@$(ANSIBLE) $(BIN)/python -m tests.scenarios run $(SCENARIO)

fleet-cuts: lab-up ## roll-outs cut off at POINTS moments drawn from SEED, and run again
	$(BIN)/python -m tests.e2e.roles.waves.interrupted --points $(POINTS) $(if $(SEED),--seed $(SEED))

lab-up: prepare
	@$(BIN)/python -m tests.lab up --nodes 3

bench: prepare ## the budgets as ratios, measured (python -m tests.bench --record keeps the figures)
	$(BIN)/python -m tests.bench
