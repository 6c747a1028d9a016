# verl-sentinel: every target does its own set-up. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV ?= .venv
SCENARIO ?= learning_rate
# How many random schedules `make chaos` runs after its list of scenarios, and from which seed.
SCENARIOS ?= 20
SEED ?= 1
# How long `make bench` soaks the exporter.
MINUTES ?= 30
PY := $(VENV)/bin/python
# Passed on to pytest, for example: make test PYTEST_ARGS="-m 'not trainer'"
PYTEST_ARGS ?=
# Two files of tests at a time, in the order of their names; empty: one after the other.
SIDE_BY_SIDE ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo up down test chaos lint format bench clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:
	@VENV=$(VENV) scripts/bootstrap.sh venv programs

demo: setup  ## train, break, detect, roll back, go on; SCENARIO=learning_rate|nan|hang|rollout_errors|crash|slow_reward|blind_reward|short_answers|bad_config|bad_version|corrupt_checkpoint|memory_leak|healthy; APPROVE=1 HOLD=1
	@$(PY) -m demo --scenario $(SCENARIO) $(if $(APPROVE),--approve) $(if $(HOLD),--hold)

# Both read STACK=folder, RECOVERY=observe|approve|auto and EXPORTER_PORT=… (PROMETHEUS_, ALERTMANAGER_, GRAFANA_,
# VICTORIAMETRICS_) from the command line or the environment.
up: setup  ## the whole stack without Docker, in the background: exporter, Prometheus, Alertmanager and what else is there
	@$(PY) -m compose.local up

down:  ## end what `make up` started; data, logs and tokens stay in .stack
	@if [ -x $(PY) ]; then $(PY) -m compose.local down; else echo "Nothing runs: there is no $(VENV), which make up makes."; fi

test: setup  ## run all tests, on the stock verl trainer, real programs and a real browser
	@scripts/bootstrap.sh browser node slurm faketime
	$(PY) -m pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

chaos: setup  ## kill, cut and fill everything at every stage of a recovery; SCENARIOS=20 SEED=1
	@scripts/bootstrap.sh faketime
	$(PY) -m tests.chaos --scenarios $(SCENARIOS) --seed $(SEED)

lint: setup  ## ruff, mypy, import-linter, verl-sentinel check (promtool, amtool, our own), shellcheck
	@scripts/bootstrap.sh shellcheck
	@VENV=$(VENV) scripts/lint.sh

format: setup  ## let ruff mend and format the code
	$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format .

# All of them run, also after one that missed its target; the exit status says whether any did.
bench: setup  ## detection, speed and memory, side by side with peers; the last takes MINUTES=30
	@VENV=$(VENV) scripts/bootstrap.sh peers
	@missed=; \
	for one in detection budget trainer_overhead alert_latency ingest scrape memory console replay recovery checkpoint_overhead "soak --minutes $(MINUTES)"; do \
	  echo "== python -m bench.$$one"; $(PY) -m bench.$$one || missed="$$missed $${one%% *}"; \
	done; \
	[ -z "$$missed" ] || { echo "missed their targets, or could not run:$$missed" >&2; exit 1; }

clean:  ## remove what the targets above made (not the checkpoints of your own runs)
	rm -rf .venv .setup.log demo/out demo/out-toy build *.egg-info .pytest_cache .mypy_cache .ruff_cache
