# `make demo` and `make test` are all a newcomer needs: each makes the virtual environment when it is missing.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BUNDLED := src/tokengt/data/bundled
# Small eigenproblems slow down a hundredfold when several threads fight over them.
export OMP_NUM_THREADS ?= 2
# One worker per core, at most four. Each worker takes neighbouring tests, so that what a module prepares for its tests is
# prepared once, and a worker that has finished takes tests from one that has not.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: demo test check slow drill docs pictures bench clean

# Matrices this small gain little from a second thread, and wait long for it when another program has the core.
# The tests use every core by running in several processes, with one thread in each.
demo test slow drill: export OMP_NUM_THREADS = 1
# --resume: a second demo finds the first one's run, a stopped one goes on.
demo: $(STAMP)
	$(BIN)/tokengt train $(BUNDLED)/esol.csv.xz --smiles smiles --target logSolubility --out runs/esol --resume
	$(BIN)/tokengt predict runs/esol $(BUNDLED)/new_molecules.csv --out runs/predictions.csv --interval 0.9 --force
	$(BIN)/tokengt explain runs/esol "CC(=O)Nc1ccc(O)cc1" --out runs/paracetamol.html --force
	@echo
	@echo "Now open:"
	@echo "  runs/esol/parity.png        predicted against measured solubility of the test molecules"
	@echo "  runs/esol/calibration.png   whether its 90% intervals hold nine in ten, and how wide they are"
	@echo "  runs/esol/curves.png        how the training went"
	@echo "  runs/esol/README.md         the model card: data, split, errors, warnings"
	@echo "  runs/predictions.csv        14 new rows with intervals; two are bad, with the reason beside them"
	@echo "  runs/paracetamol.html       what the prediction for paracetamol is made of, in a browser"
	@echo "To begin anew: rm -r runs/esol"

test: check
	$(PYTEST)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

slow: $(STAMP)
	$(PYTEST) -m slow

# Hostile calls by the thousand, kills, full disks; the counts go to results/drill.json and docs/reliability.md.
drill: $(STAMP)
	rm -rf build/drill
	TOKENGT_DRILL=build/drill $(PYTEST) -m drill tests/drill; status=$$?; \
		$(BIN)/python -m tests.drill.report build/drill && exit $$status

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

pictures: $(STAMP)
	$(BIN)/python docs/pictures/overview.py
	$(BIN)/python docs/pictures/results.py
	$(BIN)/python docs/pictures/pages.py
	$(BIN)/python docs/pictures/serve.py

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
