# Every target makes the virtual environment it needs; `make test` works on a fresh clone with nothing but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test lint docs bench clean
.DEFAULT_GOAL := test

# torch goes first and by its exact version, so that no other package's looser wish picks the build.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,analysis,hdf5,nltk,video,dev,docs]"
	touch $@

demo: $(INSTALLED)  ## Train on pictures of emoji, print the table, answer queries (about 5 minutes on 2 cores).
	$(BIN)/openvse demo --out demo_output

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

bench: $(INSTALLED)  ## Run every benchmark, one after the other, and print its table.
	for script in benchmarks/[a-z]*.py; do echo "== $$script" && $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) site demo_output .mypy_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
