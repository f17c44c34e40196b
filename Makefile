# `make` shows what there is. Only Linux, Python >= 3.10 with venv, and make are needed; `setup` brings the rest into .venv.

PYTHON ?= python3
HOURS ?= 1
SECONDS ?= 60
BIN := .venv/bin
STAMP := .venv/.installed
MS_BIN := .venv-mindspore/bin
MS_STAMP := .venv-mindspore/.installed
FRAMEWORK ?= torch
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start thousands of processes: each would compile this package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-mindspore lint format test test-traced test-waits test-mindspore wheel test-wheel fuzz planted torture docs site demo bench clean

help:  ## show this list
	@grep -E '^[a-z-]+: .*## |^[a-z-]+:  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: $(STAMP)  ## create .venv with the pinned versions (once, and again when pyproject.toml or constraints.txt change)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed, " + sys.executable + " is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv is missing; install it (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,examples,png,weights,objects,docs,dev,fuzz]'
	@touch $@

setup-mindspore: $(MS_STAMP)  ## create .venv-mindspore: MindSpore and PyTorch bring libraries of the same names, so each has its own

$(MS_STAMP): pyproject.toml constraints.txt
	test -x $(MS_BIN)/python || $(PYTHON) -m venv .venv-mindspore
	$(MS_BIN)/python -m pip install --quiet -c constraints.txt -e '.[mindspore,examples]' hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

lint: $(STAMP)  ## ruff, mypy, import-linter: all run, the first failure counts
	@failed=0; \
	echo "ruff check"; $(BIN)/ruff check . || failed=1; \
	echo "ruff format"; $(BIN)/ruff format --check . || failed=1; \
	echo "mypy"; $(BIN)/mypy || failed=1; \
	echo "import-linter"; $(BIN)/lint-imports || failed=1; \
	exit $$failed

format: $(STAMP)  ## let ruff format and fix what it safely can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Traced are the tests that cover recovery/core and recovery/store on their own. Tracing slows a test, makes every process of it start cold, and
# would shift what is measured. The other tests' processes mostly wait: six tests share two cores.
TRACED := tests/core tests/store
test: $(STAMP)  ## all tests; recovery/core and recovery/store must keep their branch coverage
	@echo "traced tests, and beside them those that mostly wait; each says what it found at its end"
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-traced test-waits
	$(BIN)/python -m pytest -m "not alone and not waits and not mindspore and not wheel" -n 6 --dist worksteal $(TRACED:%=--ignore=%)
	$(BIN)/python -m pytest -m "alone and not mindspore and not wheel" $(TRACED:%=--ignore=%)

test-traced: $(STAMP)
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal $(TRACED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=100

test-waits: $(STAMP)
	$(BIN)/python -m pytest -m waits -n 3 --dist worksteal $(TRACED:%=--ignore=%)

test-mindspore: $(MS_STAMP)  ## the tests of recovery.mindspore, on the real MindSpore
	$(MS_BIN)/python -m pytest -m mindspore -n 4 --dist worksteal tests/mindspore

wheel: $(STAMP)  ## build the package into dist/: the same commit gives the same bytes
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist

test-wheel: $(STAMP)  ## build it twice and compare, look into it, install it into an empty environment and use it there
	$(BIN)/python -m pytest -m wheel tests/wheel

fuzz: $(STAMP)  ## whatever reads foreign bytes, SECONDS (60) for each target
	$(BIN)/python -m tests.fuzz --jobs 2 --seconds $(SECONDS)

planted: $(STAMP)  ## plant every bug of the table, one at a time; fails when one survives
	$(BIN)/python -m tests.planted.run

torture: $(STAMP)  ## everything that is killed, cut, flipped and planted, for HOURS (1); writes docs/reliability.md
	$(BIN)/python -m tests.faults.torture --hours $(HOURS)

docs: $(STAMP)  ## write the pages of docs/reference and the drawings of docs/img again from the code
	$(BIN)/python -m tests.house.generate_settings
	$(BIN)/python -m tests.house.generate_pages

site: $(STAMP)  ## build the documentation into site/, strictly
	$(BIN)/zensical build --strict --clean

ifeq ($(FRAMEWORK),mindspore)
demo: $(MS_STAMP)
	$(MS_BIN)/python examples/disaster_recover/demo.py mindspore
else
demo: $(STAMP)  ## train, kill a worker and the scheduler, bring them back, compare the weights (FRAMEWORK=mindspore: with it)
	$(BIN)/python examples/disaster_recover/demo.py $(FRAMEWORK)
endif

bench: $(STAMP)  ## measure recovery time, how soon a death is noticed, the cost when nothing fails, and how long looking takes
	$(BIN)/python benchmarks/recover.py
	$(BIN)/python benchmarks/detect.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/step_time.py
	$(BIN)/python benchmarks/kill_a_minute.py
	$(BIN)/python benchmarks/crowd.py
	$(BIN)/python benchmarks/looking.py

clean:  ## remove caches and build products; never a recovery path
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* .cache build dist site
