# Every target does its own set-up. `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Reinstall only when the project's own description changes.
INSTALLED := $(VENV)/.installed-$(shell cat pyproject.toml | cksum | cut -d' ' -f1)

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "holdfast needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing). Set PYTHON=/path/to/python3.11"; exit 1; }

.PHONY: java
java:
	@scripts/check-java

$(INSTALLED): | python
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing holdfast and its development tools into $(VENV) (once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,all]'
	@rm -f $(VENV)/.installed-*
	@touch $@

.PHONY: install
install: $(INSTALLED) ## create .venv and install everything into it

# Test JVMs start twice as fast with Spark's classes in an archive; where one cannot be made they do without.
ARCHIVE := $(VENV)/spark-classes.jsa
$(ARCHIVE): $(INSTALLED) | java
	@echo "archiving Spark's classes for the tests (once)"
	@PYTHONPATH=tests $(PY) -m spark.archive_classes >/dev/null 2>&1 || echo "no archive could be made: JVMs will start more slowly"

.PHONY: mariadb
mariadb:
	@scripts/install-mariadb

.PHONY: chromium
chromium:
	@scripts/install-chromium

.PHONY: test
test: java mariadb chromium $(ARCHIVE) ## run the tests, on two cores
	$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: test-all
test-all: java mariadb chromium $(ARCHIVE) ## run the tests, and those that take an hour: every source killed at every step
	$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "long or not long"

.PHONY: check
check: $(INSTALLED) ## lint, format check, types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

.PHONY: demo
demo: java $(INSTALLED) ## show the main job working
	$(PY) examples/demo

.PHONY: bench-store
bench-store: $(INSTALLED) ## measure the store against the bare disk; results in benchmarks/results
	$(PY) benchmarks/store.py

.PHONY: bench-pipeline
bench-pipeline: java $(INSTALLED) ## measure pipelines against plain Structured Streaming; results in benchmarks/results
	$(PY) benchmarks/pipeline.py

.PHONY: bench-commits
bench-commits: java $(INSTALLED) ## measure epochs against those of another commit, in turns (BASE=HEAD~1)
	$(PY) benchmarks/commits.py --base $(or $(BASE),HEAD~1)

.PHONY: bench-file-source
bench-file-source: $(INSTALLED) ## measure what an epoch costs after up to a million files; results in benchmarks/results
	$(PY) benchmarks/file_source.py

.PHONY: soak-memory
soak-memory: $(INSTALLED) ## what a process holds over 100,000 epochs (SECONDS=3600); results in benchmarks/results
	$(PY) benchmarks/memory.py --seconds $(or $(SECONDS),3600)

.PHONY: bench-connectors
bench-connectors: java $(INSTALLED) ## measure each connector against the plain way; results in benchmarks/results
	$(PY) benchmarks/connector_rates.py

.PHONY: bench-control
bench-control: java $(INSTALLED) ## measure what status requests cost a running pipeline; results in benchmarks/results
	$(PY) benchmarks/control.py

.PHONY: chaos-matrix
chaos-matrix: java $(ARCHIVE) ## kill every kind of pipeline at every step; goes on where it was cut off (SECONDS=3600)
	$(PY) tests/chaos/matrix.py --seconds $(or $(SECONDS),3600)

.PHONY: chaos
chaos: java $(ARCHIVE) ## random kills, damage, full disks and second writers (SECONDS=600 SEED=1)
	$(PY) tests/chaos/random_kills.py --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

.PHONY: simulate
simulate: $(INSTALLED) ## random histories without Spark, judged after each step (HISTORIES=10000 SEED=1 STEPS=50 SECONDS=3600)
	PYTHONPATH=tests $(PY) tests/simulate/run.py --histories $(or $(HISTORIES),10000) --seed $(or $(SEED),1) \
	  --steps $(or $(STEPS),50) $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: fuzz
fuzz: java $(ARCHIVE) ## random pipelines, disturbed, against plain Spark (PIPELINES=200 SEED=1 SECONDS=3600 PROCESSES=2)
	$(PY) tests/fuzz/fuzz_run.py --pipelines $(or $(PIPELINES),200) --seconds $(or $(SECONDS),3600) \
	  --processes $(or $(PROCESSES),2) $(if $(SEED),--seed $(SEED))

.PHONY: guards
guards: $(INSTALLED) ## remove one guard at a time in a copy and show which test notices
	$(PY) scripts/remove_guards.py

.PHONY: mutate
mutate: $(INSTALLED) ## change one decision at a time and show what no test notices; goes on where it was cut off (SECONDS=3600 SEED=1)
	$(PY) scripts/mutate.py --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1) $(if $(HEAVY),--heavy)

.PHONY: clean
clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
