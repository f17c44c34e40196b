# `make` shows what there is. Only Linux, Python >= 3.10 with venv, and make are needed; `setup` brings the rest into .venv.

PYTHON ?= python3
HOURS ?= 1
SECONDS ?= 60
BIN := .venv/bin
STAMP := .venv/.installed
MS_BIN := .venv-mindspore/bin
MS_STAMP := .venv-mindspore/.installed
TR_BIN := .venv-trainers/bin
TR_STAMP := .venv-trainers/.installed
RAY_BIN := .venv-ray/bin
RAY_STAMP := .venv-ray/.installed
FRAMEWORK ?= torch
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start thousands of processes: each would compile this package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-mindspore setup-trainers setup-ray tools tools-of-clusters lint format test test-traced test-inside test-stories test-stories-mindspore test-planted test-mindspore test-trainers test-all test-rest test-drawn test-alone package wheel test-wheel fuzz planted torture docs site demo bench clean

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

setup-trainers: $(TR_STAMP)  ## create .venv-trainers: Lightning, Accelerate, transformers, datasets, DeepSpeed and trackers, which nothing else here needs

$(TR_STAMP): pyproject.toml constraints.txt
	test -x $(TR_BIN)/python || $(PYTHON) -m venv .venv-trainers
	$(TR_BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,lightning,transformers,tensorboard,mlflow,wandb,otel]' datasets deepspeed hypothesis pytest pytest-timeout pytest-xdist
	@touch $@

setup-ray: $(RAY_STAMP)  ## create .venv-ray: Ray, and what its actors run

$(RAY_STAMP): pyproject.toml constraints.txt
	test -x $(RAY_BIN)/python || $(PYTHON) -m venv .venv-ray
	$(RAY_BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,ray]' hypothesis pytest pytest-timeout pytest-xdist
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

# Four tiers; CONTRIBUTING.md says which one a new test belongs to. The gate is `test`: nothing in it is drawn, and no verdict of it is a time.
# Traced are the tests that cover recovery/core and recovery/store on their own: they run first and alone, since tracing slows what it sees.
TRACED := tests/core tests/store
INSIDE := not cluster and not slow and not alone and not mindspore and not trainers and not ray and not wheel
REST := not mindspore and not trainers and not ray and not wheel and not alone and not story and (cluster or slow)
# By exec, so that what asks make to end reaches the tests: a shell in between would end alone.
PYTEST := exec $(BIN)/python -m pytest
# The same order, sets, seeds and examples in every run of one tree.
FIXED := PYTHONHASHSEED=0 HYPOTHESIS_PROFILE=gate
GATE_PYTEST := $(FIXED) $(PYTEST) -p no:randomly --maxfail=3
JOBS ?= 6

test: $(STAMP) $(MS_STAMP) $(TR_STAMP)  ## the gate, 9 to 16 minutes: linters, package, all tests that start no cluster, the stories of clusters, planted bugs of the change
	@$(BIN)/python -m tests.load --begin
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint package
	@$(MAKE) --no-print-directory test-traced
	@$(BIN)/python -m tests.load --behind $(MAKE) --no-print-directory --jobs 3 --output-sync=target test-stories-mindspore test-stories-trainers test-stories test-inside
	@$(MAKE) --no-print-directory test-planted

test-traced: $(STAMP)
	rm -f .coverage .coverage.*
	$(FIXED) exec $(BIN)/coverage run -m pytest -p no:randomly --maxfail=3 -m "$(INSIDE)" -n 2 --dist worksteal $(TRACED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=100

test-inside: $(STAMP)
	$(GATE_PYTEST) -m "$(INSIDE)" -n 3 --dist worksteal $(TRACED:%=--ignore=%)

# Their processes mostly wait.
test-stories: $(STAMP)
	@mkdir -p .cache && $(BIN)/python -m tests.stories torch >.cache/stories
	$(GATE_PYTEST) -n 4 --dist worksteal @.cache/stories

test-stories-mindspore: $(STAMP) $(MS_STAMP)
	@mkdir -p .cache && $(BIN)/python -m tests.stories mindspore >.cache/stories-mindspore
	$(FIXED) exec $(MS_BIN)/python -m pytest --maxfail=3 -n 3 @.cache/stories-mindspore

test-stories-trainers: $(TR_STAMP)
	@mkdir -p .cache && $(BIN)/python -m tests.stories trainers >.cache/stories-trainers
	$(FIXED) exec $(TR_BIN)/python -m pytest --maxfail=3 -n 2 @.cache/stories-trainers

test-planted: $(STAMP)
	$(FIXED) exec $(BIN)/python -m tests.planted.run --changed-since --most 40 --jobs 2 --hang 20

tools-of-clusters:  ## the same for the tests of jobs on Slurm, of metrics on Prometheus, and of the live page in Chromium
	@$(MAKE) --no-print-directory tools TOOLS="$(TOOLS_OF_CLUSTERS)"

test-all: $(STAMP) $(MS_STAMP) $(TR_STAMP) $(RAY_STAMP) tools-of-clusters  ## everything else that is decided by what happens, 40 minutes: all clusters, drawn examples, all planted bugs, MindSpore, trainers
	@$(MAKE) --no-print-directory --keep-going test-rest test-drawn test-alone test-wheel test-mindspore test-trainers test-ray planted

test-rest: $(STAMP)
	PYTHONHASHSEED=0 $(PYTEST) -m "$(REST)" -n $(JOBS) --dist worksteal

test-drawn: $(STAMP)
	HYPOTHESIS_PROFILE=all $(PYTEST) -m "hypothesis and not mindspore and not trainers and not ray" -n 2 --dist worksteal

test-alone: $(STAMP)
	$(PYTEST) -m "alone and not mindspore and not trainers and not ray and not wheel"

test-mindspore: $(MS_STAMP)  ## the tests of recovery.mindspore, on the real MindSpore
	exec $(MS_BIN)/python -m pytest -m mindspore -n 4 --dist worksteal tests/mindspore

# What can be had where it is missing, by Debian's names; `make tools` installs it as root, and names it otherwise.
TOOLS := ip:iproute2 gcc:gcc nft:nftables mpirun:openmpi-bin openssl:openssl unshare:util-linux setpriv:util-linux mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs
# Only `test-all` needs them.
TOOLS_OF_CLUSTERS := slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge nsenter:util-linux prometheus:prometheus promtool:prometheus chromium:chromium chromedriver:chromium-driver
tools:  ## install the programs that some tests need (Debian and Ubuntu, as root), or name what is missing
	@missing=$$(for tool in $(TOOLS); do command -v $${tool%%:*} >/dev/null || echo $${tool#*:}; done | sort -u | tr '\n' ' '); \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing >/dev/null; \
	else echo "missing, install them: $$missing"; exit 1; fi

test-trainers: $(TR_STAMP)  ## the tests of recovery.lightning, recovery.accelerate and recovery.transformers, on the released versions
	exec $(TR_BIN)/python -m pytest -m trainers -n 2 --dist worksteal tests/trainers

test-ray: $(RAY_STAMP)  ## the tests of recovery.ray, on the real Ray
	exec $(RAY_BIN)/python -m pytest -m ray tests/ray

package: $(STAMP)  ## the documentation, strictly, and the package, built twice and compared
	@$(MAKE) --no-print-directory site
	$(GATE_PYTEST) -q -m "wheel and not slow" tests/wheel

wheel: $(STAMP)  ## build the package into dist/: the same commit gives the same bytes
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist

test-wheel: $(STAMP)  ## build it twice and compare, look into it, install it into an empty environment and use it there
	$(PYTEST) -m wheel tests/wheel

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
	$(BIN)/python benchmarks/scrape.py
	$(BIN)/python benchmarks/replicas.py

clean:  ## remove caches and build products; never a recovery path
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* .cache build dist site
