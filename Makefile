# `make` alone lists the targets. Everything is installed into .venv from pinned requirements.

PYTHON ?= python3
PY := .venv/bin/python
# What takes longest comes first: type checkers, and programs of the docs.
UNIT := tests/typing tests/docs tests/unit tests/contract tests/scenario
# A kind of tests is a folder, so that a stage collects nothing but its own tests; each worker collects them all.
# A worker that has done its share takes half of what another one still has to do, so that all end together.
WORKERS := -n auto --maxprocesses 8 --dist worksteal
# Unit tests wait half of their time, for real clocks and threads.
TWICE := -n $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( n < 8 ? n * 2 : 16 ))) --dist worksteal
# Tests of processes mostly wait.
WAITING := -n $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) * 3 + 1) / 2 )))
UV := uv==0.13.7
SEEDS ?= 200
FRAMES ?= 1000000
WORKLOAD ?= kv fenced seats calls messages leaders crons cron_deploys flows schedules jobs
MINUTES ?= 15

# Most tests make a database: hundreds of files, and many waits for the disk. Where nobody is killed it lies in memory, if that has
# room and lets programs run (those of PostgreSQL may be copied there), in a folder that goes with the tests.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')
MEMORY := $(shell test -w "$(MEMORY)" && ! grep -qs " $(MEMORY) .*noexec" /proc/mounts && echo $(MEMORY))
IN_MEMORY := $(if $(MEMORY),export TMPDIR=$$(mktemp -d $(MEMORY)/test.XXXXXX) && trap 'rm -rf $$TMPDIR' EXIT INT TERM && chmod 755 $$TMPDIR &&)

# uv has authorities of its own; those of the system are what pip and curl go by, also where a proxy has added one.
export UV_SYSTEM_CERTS ?= 1
INSTALL = install() { $(PY) -m uv pip install --quiet --python $(PY) "$$@" || { echo "set-up: uv could not install, pip tries" && \
    $(PY) -m pip install --quiet --disable-pip-version-check "$$@"; }; } && install

# Each process of each stage would compile the tests anew, with pytest's own rewriting: most of what collecting them takes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo check test lint types unit simulation interleavings cluster sim fuzz plants chaos nightly bench matrix matrix-postgres coverage format requirements settings-docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# ── set-up ──────────────────────────────────────────────────────────────────────────────────────────────────────

.venv/uv.stamp:
	@echo "set-up: creating .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coterie needs Python 3.11 or newer")'
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check $(UV) || echo "set-up: there is no uv to be had, so pip installs"
	@touch $@

.venv/run.stamp: .venv/uv.stamp requirements/run.txt pyproject.toml
	@echo "set-up: installing what coterie needs (requirements/run.txt)"
	@$(INSTALL) -r requirements/run.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/dev.stamp: .venv/run.stamp requirements/dev.txt
	@echo "set-up: installing what the tests need (requirements/dev.txt)"
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

.venv-%/dev.stamp: PY = .venv-$*/bin/python
.venv-%/dev.stamp: requirements/run.txt requirements/dev.txt pyproject.toml
	@echo "set-up: installing what the tests need on Python $* into .venv-$*"
	@test -x $(PY) || python$* -m venv .venv-$*
	@$(PY) -m pip install --quiet --disable-pip-version-check $(UV) || echo "set-up: there is no uv to be had, so pip installs"
	@$(INSTALL) -r requirements/run.txt -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# ── the demo, and everything ────────────────────────────────────────────────────────────────────────────────────

demo: .venv/run.stamp ## three runners on one file, and keys to kill, freeze, cut and deploy them
	@.venv/bin/coterie demo

check: lint types ## the inner loop: format, lint, types, unit and contract tests without PostgreSQL
	@$(IN_MEMORY) $(PY) -m pytest -q tests/unit tests/contract tests/docs/test_design.py -m "not nightly and not postgres" $(TWICE)

# Tests of processes and of interleavings wait more than they compute: they run beside the others, and their report comes last.
test: lint ## everything that CI runs
	@$(MAKE) --no-print-directory cluster interleavings > .venv/beside.log 2>&1 & beside=$$!; \
	    $(MAKE) --no-print-directory types unit simulation; rest=$$?; \
	    wait $$beside; found=$$?; cat .venv/beside.log; exit $$((rest ? rest : found))

# ── the parts of `make test` ────────────────────────────────────────────────────────────────────────────────────

lint: .venv/dev.stamp ## format, rules of the code, which package may import which
	@echo "lint"
	@$(PY) -m ruff format --check --quiet .
	@$(PY) -m ruff check --quiet .
	@.venv/bin/lint-imports --cache-dir .venv/imports > .venv/imports.log || { cat .venv/imports.log; exit 1; }

types: .venv/dev.stamp ## mypy strict
	@echo "types"
	@$(PY) -m mypy --no-error-summary

unit: .venv/dev.stamp ## unit, contract and scenario tests, docs and examples
	@echo "unit"
	@$(IN_MEMORY) $(PY) -m pytest -q $(UNIT) -m "not nightly" $(WORKERS)

simulation: .venv/dev.stamp ## a fixed sample of seeds, and the planted bugs that the simulator must find
	@echo "simulation"
	@$(PY) -m pytest -q tests/simulation -m "not nightly" $(WORKERS)

interleavings: .venv/dev.stamp ## a fixed sample of the orders of two transactions on a real PostgreSQL
	@echo "interleavings"
	@$(IN_MEMORY) $(PY) -m pytest -q tests/interleavings -m "not nightly" $(WORKERS)

cluster: .venv/dev.stamp ## tests that start and kill real processes (a sample)
	@echo "cluster"
	@$(PY) -m pytest -q tests/cluster -m "not nightly" $(WAITING)

# ── longer ──────────────────────────────────────────────────────────────────────────────────────────────────────

sim: .venv/dev.stamp ## many seeds: make sim SEEDS=5000 WORKLOAD=kv
	@$(PY) -m tests.support.campaign $(WORKLOAD:%=tests.simulation.workloads.%:main) --seeds $(SEEDS)

fuzz: .venv/dev.stamp ## frames of junk at the transport: make fuzz FRAMES=10000000
	@$(PY) -m tests.unit.transport.fuzz --frames $(FRAMES)

plants: .venv/dev.stamp ## plant every known bug and print which instrument found it, after how much
	@$(PY) -m tests.simulation.plants
	@$(PY) -m tests.interleavings plants
	@$(PY) -m tests.unit.work.thread_plants

chaos: .venv/dev.stamp ## real processes and their database broken at random on each engine: make chaos MINUTES=60
	@$(PY) -m tests.cluster.chaos_messages --engine postgres --minutes $(MINUTES)
	@$(PY) -m tests.cluster.chaos_messages --engine sqlite --minutes $(MINUTES)
	@$(PY) -m tests.cluster.chaos_jobs --engine postgres --minutes $(MINUTES)
	@$(PY) -m tests.cluster.chaos_jobs --engine sqlite --minutes $(MINUTES)

nightly: .venv/dev.stamp ## what takes too long for every change: all interleavings, 200 rounds of kill -9, chaos, 5,000 seeds
	@$(PY) -m pytest -q tests -m nightly --timeout 3600
	@$(MAKE) --no-print-directory plants
	@$(MAKE) --no-print-directory chaos
	@$(MAKE) --no-print-directory sim SEEDS=5000

bench: .venv/dev.stamp ## figures for this machine beside its raw limits; ARGS="--json" for machines
	@$(PY) -m bench $(ARGS)

# Python 3.11 does not tell a tracer that a coroutine goes on after an exception was thrown into it (cpython#106749): what runs after a
# time limit or a cancellation would count as not covered.
coverage: PY := .venv-3.13/bin/python
coverage: .venv-3.13/dev.stamp ## what unit and contract tests do not reach, on Python 3.13; fails below 95 % of the branches of ownership, storage, cron, durable work
	@rm -f .coverage .coverage.*
	@$(IN_MEMORY) $(PY) -m coverage run -m pytest -q $(UNIT) -m "not nightly" --timeout 600
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report && $(PY) -m coverage json -q -o .coverage.json
	@$(PY) -m tests.support.branch_coverage .coverage.json

matrix: .venv-3.11/dev.stamp .venv-3.12/dev.stamp .venv-3.13/dev.stamp ## unit and contract tests on Python 3.11, 3.12 and 3.13 (all on PATH; with pyenv set PYENV_VERSION)
	@for version in 3.11 3.12 3.13; do \
	    echo "Python $$version"; \
	    .venv-$$version/bin/python -m pytest -q $(UNIT) -m "not nightly" $(WORKERS) || exit 1; \
	done

matrix-postgres: .venv/dev.stamp ## the tests that need PostgreSQL, on 16 and on 18
	@for version in 16 18; do \
	    echo "PostgreSQL $$version"; \
	    COTERIE_TEST_POSTGRES_VERSION=$$version $(PY) -m pytest -q $(UNIT) -m "postgres and not nightly" $(WORKERS) || exit 1; \
	done

# ── keeping house ───────────────────────────────────────────────────────────────────────────────────────────────

format: .venv/dev.stamp ## format and mend what can be mended
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

settings-docs: .venv/dev.stamp ## write docs/settings.md and .env.example from the declarations
	@$(PY) -c 'from pathlib import Path; from coterie.settings import write_pages; write_pages(Path.cwd())'

requirements: .venv/uv.stamp ## pin the newest versions anew
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --generate-hashes --upgrade \
	    --custom-compile-command "make requirements" --extra all requirements/run.in pyproject.toml -o requirements/run.txt
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --generate-hashes --upgrade \
	    --custom-compile-command "make requirements" -c requirements/run.txt requirements/dev.in -o requirements/dev.txt

clean: ## remove everything that was installed or built
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* dist build
