PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests write many small files, to memory if there is room, and start processes, which need not compile the package.
export PYTEST_DEBUG_TEMPROOT ?= $(shell test "`df --output=avail /dev/shm | tail -n 1`" -gt 4000000 && echo /dev/shm)
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install train test test-pages test-all lint docs dist clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt src/rl_training/version.py
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

$(VENV)/.installed-all: $(VENV)/.installed-dev
	$(INSTALL) --editable '.[dev,ray,docs,ogbench]' 'ray[tune]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) --editable '.[docs]'
	touch $@

train: install
	$(BIN)/rl-training train --config configs/sac/pendulum.yaml

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	$(BIN)/python -m pytest -q -n 2

test-pages: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -n 2 -m 'pages and not slow'

test-all: lint $(VENV)/.installed-all
	$(BIN)/python -m pytest -q -n 2 -m ''

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W -n --keep-going -b html docs build/docs
	@echo open build/docs/index.html

# Wheel and sdist in dist/, checked, and installed into an empty environment by the test.
dist: $(VENV)/.installed-dev
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -q -m '' tests/test_packaging.py

clean:
	rm -rf $(VENV)
