# `make demo` and `make test` each set up what they need by themselves: a virtual environment in .venv with what
# constraints.txt pins. Set-up is done again only when what it depends on changes.
PYTHON ?= python3
VENV := .venv
# CI adds official-meteor (100 MB), which also needs Java.
EXTRAS ?= dev,compare
BIN := $(VENV)/bin
# A file's tests stay in one process, for what they share; files in the folders' order, which has slow ones first.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# Content, not dates, and the place: a virtual environment cannot be moved.
SETUP_FILES := pyproject.toml constraints.txt scripts/fetch_resources.py
KEY := $(shell (cat $(SETUP_FILES); pwd; echo $(EXTRAS)) | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.set-up-$(KEY)

.PHONY: help setup demo test quick-test lint format types imports resources clean

help:
	@echo 'make demo        set up, then run the main job end to end (3 minutes on two cores)'
	@echo 'make test        set up, then run all tests'
	@echo 'make quick-test  the same without the slow ones'
	@echo 'make lint        ruff: rules and format'
	@echo 'make types       mypy --strict'
	@echo 'make imports     which room may import which'
	@echo 'make setup       the virtual environment only'
	@echo 'make resources   fetch again what METEOR needs (part of set-up)'
	@echo 'make clean       remove the virtual environment and caches'

setup: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Torso needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	@rm -f $(VENV)/.set-up-*
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV) || { echo 'Python cannot make virtual environments here; on Debian: apt-get install python3-venv' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@$(BIN)/python scripts/fetch_resources.py || echo 'METEOR will not work; `make resources` tries again' >&2
	@touch $@

demo: setup
	@$(BIN)/torso demo

test: setup
	$(PYTEST)

quick-test: setup
	$(PYTEST) -m 'not slow'

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: setup
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: setup
	$(BIN)/python -m mypy

imports: setup
	$(BIN)/lint-imports

resources: setup
	$(BIN)/python scripts/fetch_resources.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build
