# Two commands on a bare clone: `make run` and `make test`. All they need is Python 3.10-3.12, make and a package index.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# MINDSPORE chooses another version than the lock's, in an environment of its own: `make test MINDSPORE=2.8.0`.
LOCKED := $(shell sed -n 's/^mindspore==\([^ ]*\).*/\1/p' requirements.lock)
override MINDSPORE := $(filter-out $(LOCKED),$(MINDSPORE))
export MINDSPORE
VENV := .venv$(MINDSPORE:%=-%)

# PYTHON chooses the interpreter: `PYTHON=python3.12 make run`. Without it the one that made `.venv` stays, or the first
# that fits is taken.
MADE_BY := $(shell sed -n 's/^home = //p' $(VENV)/pyvenv.cfg 2>/dev/null)
MADE_BY := $(MADE_BY:%=%/$(shell sed -n 's/^version = \(3\.[0-9]*\).*/python\1/p' $(VENV)/pyvenv.cfg 2>/dev/null))
CANDIDATES := $(if $(PYTHON),$(PYTHON),$(MADE_BY) python3.12 python3.11 python3.10 python3 python)
PY := $(VENV)/bin/python
CONFIG ?= configs/wide_deep_movielens.yaml
ARGS ?=
# Those that the environment has: all but `gpu`, 1.7 GB that the tests do without.
EXTRAS = $(call extras_of,EXTRAS)
extras_of = $(patsubst %,--extra %,$(subst $(COMMA), ,$(shell sed -n 's/^$(1) = "\(.*\)"/\1/p' scripts/setup_env.py)))
COMMA := ,
COMPILE = $(PY) -m uv pip compile --universal --python-version 3.10 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --quiet
# Processes that share the tests. More than two gain little: MindSpore uses every core by itself.
WORKERS ?= 2
# Where one of them crashes, the tests end and name the test: with `loadfile`, pytest-xdist waits for ever once it has
# replaced a process.
PYTEST = $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# MindSpore warns on every start; only its errors matter here.
export GLOG_v ?= 3

.PHONY: help run demo test test-long versions lint format bench chaos docs faults fuzz lock venv clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "make %-9s %s\n", $$1, $$2 }'
	@echo
	@echo 'PYTHON=python3.12 make run    choose the interpreter (3.10, 3.11 or 3.12)'
	@echo 'make test MINDSPORE=2.8.0      with another version of MindSpore: 2.7.2, 2.8.0 or 2.9.0'
	@echo 'make test ARGS="-k auc"       hand arguments on'

run: PART = run
run: venv ## train Wide & Deep on MovieLens-100K and compare it with two baselines (CONFIG=...)
	@$(VENV)/bin/trainer fit $(CONFIG) $(ARGS)

demo: venv ## a shop that learns while it serves: HTTP, Redis, a kill, a version rolled back, and a picture of it all
	@$(PY) -m examples.shop.demo $(ARGS)

test: venv ## run the tests, but for those of test-long
	@$(PYTEST) -m "not long" $(ARGS)

test-long: venv ## run the tests that are marked long: every kill, fault, page and benchmark
	@$(PYTEST) -m long $(ARGS)

versions: venv ## run the tests with each version of MindSpore and write the table of docs/install.md (ARGS="2.8.0")
	@$(PY) -m scripts.mindspore_versions $(ARGS)

lint: venv ## check style, formatting, which package imports which, and the types of the public API
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m mypy

format: venv ## put formatting right
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: venv ## build the site of the documentation into build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

bench: venv ## measure side by side with peers
	@$(PY) benchmarks/run.py $(ARGS)

chaos: venv ## kill and resume training again and again
	@$(PY) benchmarks/chaos.py $(ARGS)

faults: venv ## let every call to the outside fail, one after the other (ARGS="--seconds 60 --publish")
	@$(PY) benchmarks/faults.py $(ARGS)

fuzz: venv ## damage everything the trainer reads (ARGS="--seconds 600 --seed 7")
	@$(PY) benchmarks/fuzz.py $(ARGS)

lock: venv ## pin the newest fitting versions anew
	@$(COMPILE) $(EXTRAS) --upgrade --output-file requirements.lock setup.cfg
	@echo setuptools | $(COMPILE) $(call extras_of,RUN_EXTRAS) --constraint requirements.lock --output-file requirements-run.lock setup.cfg -

venv:
	@for candidate in $(CANDIDATES); do \
		if $$candidate -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then \
			exec $$candidate scripts/setup_env.py $(PART); \
		fi; \
	done; \
	echo 'This project needs Python 3.10, 3.11 or 3.12: MindSpore has wheels for no other.' >&2; \
	for candidate in $(CANDIDATES); do \
		echo "  $$candidate: $$($$candidate --version 2>&1 || true)" >&2; \
	done; \
	echo 'Name one that fits: PYTHON=/path/to/python3.12 make run' >&2; \
	exit 2

clean: ## remove the environment and everything that runs leave behind
	rm -rf .venv .venv-* .venv.lock build dist runs rank_* kernel_meta rewritten_network .pytest_cache .ruff_cache .hypothesis
	rm -rf *.egg-info
