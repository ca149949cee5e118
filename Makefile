# make demo       see it work; needs only Python 3.11 or newer
# make check      lint, types and the fast tests (about a minute)
# make test       all tests, except those that need minutes or a download
# make test-slow  those that need minutes or a download
# make bench      the speed of a training step, next to other libraries
# make web        build the page
# make docs       generate the reference pages
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
BIN := .venv/bin
# pipefail: a recipe ends if pip fails, although its output is piped. (The make of macOS, 3.81, has no .SHELLFLAGS.)
PIP := set -o pipefail; PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check
# Of pip's output, show only the package that it has reached.
PROGRESS := awk '/^Collecting/ { split($$2, name, /[<>=~!;[(]/); print "   " name[1] } /^Installing/ { print "   installing all packages" } { fflush() }'
# PyTorch's own index of builds without CUDA, which need 0.2 GB instead of 2.5.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH = $$($(BIN)/python -c "import tomllib; print(*(d for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] if d.startswith('torch')))")
.PHONY: help setup demo check test test-slow bench web docs clean

help:
	@sed -n 's/^# \(make \)/\1/p' Makefile

setup: .venv/dev

# The virtual environment has two sizes: for use, and with the development tools.
.venv/made:
	@test -n "$(PYTHON)" || { echo "Sightline needs Python 3.11 or newer. Install it, or pass its path: make PYTHON=/path/to/python"; exit 1; }
	@echo "== Creating a virtual environment in .venv with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv .venv
	@touch $@

# On Linux without an NVIDIA GPU, install the CPU build of PyTorch if its index has it; else the default build.
.venv/torch: .venv/made pyproject.toml
	@install() { echo "== Installing PyTorch: the $$1"; shift; $(PIP) "$$@" "$(TORCH)" | $(PROGRESS); }; \
	if $(BIN)/python -c 'import torch' 2>/dev/null; then echo "== PyTorch is installed"; \
	elif [ "$$(uname -s)" != Linux ]; then install "default build, which has no CUDA on $$(uname -s)"; \
	elif command -v nvidia-smi >/dev/null; then install "default build, because there is an NVIDIA GPU"; \
	elif ! $(BIN)/python -c 'import urllib.request; urllib.request.urlopen("$(CPU_INDEX)/torch/", timeout=5)' 2>/dev/null; then \
	  install "default build with CUDA (a large download), because $(CPU_INDEX) does not answer"; \
	elif ! install "CPU build, because there is no NVIDIA GPU" --index-url $(CPU_INDEX); then \
	  install "default build with CUDA (a large download), because the CPU build cannot be installed"; \
	fi
	@touch $@

.venv/run: .venv/torch
	@echo "== Installing Sightline"
	@$(PIP) -e '.[serve]' | $(PROGRESS)
	@touch $@

.venv/dev: .venv/torch
	@echo "== Installing Sightline and its development tools"
	@$(PIP) -e '.[dev]' | $(PROGRESS)
	@touch $@ .venv/run

demo: .venv/run
	@$(BIN)/sightline demo

# The tools that build the page. Without npm, the tests that need them are skipped.
web/node_modules/.package-lock.json: web/package-lock.json
	@if command -v npm >/dev/null; then echo "== Installing the tools that build the page"; cd web && npm ci --loglevel error --no-audit --no-fund; fi

check: .venv/dev
	@echo "== Checking: lint, types, fast tests"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not medium and not browser and not slow" --hypothesis-profile check --skip-shapes

test: .venv/dev web/node_modules/.package-lock.json
	@echo "== Testing: lint, types, all tests but the slow ones (some minutes)"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --durations 5

test-slow: .venv/dev
	@$(BIN)/python -m pytest -m slow

bench: .venv/dev
	@echo "== Measuring a training step next to Hugging Face and torch (leave the machine idle meanwhile)"
	@$(BIN)/python benchmarks/step.py --size $$($(BIN)/python -c 'import torch; print("base" if torch.cuda.is_available() else "tiny")')

web: .venv/dev web/node_modules/.package-lock.json
	set -o pipefail; cd web && ../$(BIN)/python openapi.py | npm run types -- src/generated.ts && npm run check && npm run build

docs: .venv/dev
	@$(BIN)/python docs/generate.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
