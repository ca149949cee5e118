# make demo    see it work: needs only Python 3.11 or newer
# make test    everything that must hold
# make bench   speed, side by side with others
# make web     build the page
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
BIN := .venv/bin
PIP := PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check
# Of all that pip says, what a person wants to see: which package it is at.
AT := awk '/^Collecting/ { split($$2, name, /[<>=~!;[(]/); print "   " name[1] } /^Installing/ { print "   installing them all" } { fflush() }'
.PHONY: help setup demo test test-slow bench web docs clean

help:
	@sed -n 's/^# \(make \)/\1/p' Makefile

setup: .venv/dev

# The virtual environment comes in two sizes: what runs, and what also tests.
.venv/made:
	@test -n "$(PYTHON)" || { echo "Sightline needs Python 3.11 or newer; install it, or name it: make PYTHON=/path/to/python"; exit 1; }
	@echo "== Making a virtual environment in .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/run: .venv/made pyproject.toml
	@echo "== Installing Sightline (PyTorch is large; this happens once)"
	@$(PIP) -e '.[serve]' | $(AT)
	@touch $@

.venv/dev: .venv/made pyproject.toml
	@echo "== Installing Sightline and what its tests need (PyTorch is large; this happens once)"
	@$(PIP) -e '.[dev]' | $(AT)
	@touch $@ .venv/run

demo: .venv/run
	@$(BIN)/sightline demo

# The page's own tools. Without npm, what needs them is not tested.
web/node_modules/.package-lock.json: web/package-lock.json
	@if command -v npm >/dev/null; then echo "== Installing what the page is built with"; cd web && npm ci --loglevel error --no-audit --no-fund; fi

test: .venv/dev web/node_modules/.package-lock.json
	@echo "== Testing: lint, types, and everything that must hold (some minutes)"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --durations 5

test-slow: .venv/dev
	@$(BIN)/python -m pytest -m slow

bench: .venv/dev
	@echo "== A training step, side by side with Hugging Face and torch (leave the machine alone meanwhile)"
	@$(BIN)/python benchmarks/step.py --size $$($(BIN)/python -c 'import torch; print("base" if torch.cuda.is_available() else "tiny")')

web: web/node_modules/.package-lock.json
	cd web && npm run check && npm run build

docs: .venv/dev
	@$(BIN)/python docs/generate.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
