# verl-sentinel: every target does its own set-up. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV ?= .venv
SCENARIO ?= learning_rate
PY := $(VENV)/bin/python
# Passed on to pytest, for example: make test PYTEST_ARGS="-m 'not trainer'"
PYTEST_ARGS ?=

.PHONY: help setup demo test lint format bench clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@VENV=$(VENV) scripts/bootstrap.sh venv programs

demo: setup  ## train, break, detect, roll back, go on; SCENARIO=learning_rate|nan|hang|rollout_errors|crash|healthy
	@$(PY) -m demo --scenario $(SCENARIO)

test: setup  ## run all tests, on the stock verl trainer and real programs
	$(PY) -m pytest $(PYTEST_ARGS)

lint: setup  ## ruff, mypy, import-linter, promtool, amtool, shellcheck
	@scripts/bootstrap.sh shellcheck
	@VENV=$(VENV) scripts/lint.sh

format: setup  ## let ruff mend and format the code
	$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format .

bench: setup  ## speed and memory, side by side with peers
	$(PY) -m bench.trainer_overhead
	$(PY) -m bench.alert_latency

clean:  ## remove what the targets above made (not the checkpoints of your own runs)
	rm -rf .venv .setup.log demo/out demo/out-toy build *.egg-info .pytest_cache .mypy_cache .ruff_cache
