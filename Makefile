# `make demo` and `make test` are all a newcomer needs: each makes the virtual environment when it is missing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Small eigenproblems slow down a hundredfold when several threads fight over them.
export OMP_NUM_THREADS ?= 2

.PHONY: demo test check slow docs bench clean

demo: $(STAMP)
	$(BIN)/python examples/solubility.py --out runs/solubility

test: check
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

docs: $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

$(STAMP): pyproject.toml constraints.txt
	@echo "making $(VENV): about a minute, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
