# make verify   set up .venv and verify the example networks on the CPU
# make test     set up .venv, lint, then run the quick tests, which test every module
# make test-all the same, then the slow ones
# make lint     ruff and mypy
# make bench    measure on this machine; PARTS="goals growth" picks parts, ARGS="--threads 2" an option
# make paper PARTS=quick   the paper's tables and curves on trained stand-ins of its networks; without PARTS all that fit a CPU
# make soak     attack the bounds with SOAK_NETWORKS=100000 generated networks, and as many ONNX graphs, in JOBS processes; goes on where it stopped
# make fuzz     fuzz every reader of files for FUZZ_SECONDS=600 each (FUZZ_TARGET=onnx: one); guided by coverage after pip install atheris
# make mutation plant single faults in the numerics and see which test notices
# make bench-gpu PARTS="kernels micro"    check and measure on an NVIDIA GPU; without .venv by PYTHON as it is
# make clean    remove .venv and caches
#
# PYTHON=python3.12     the interpreter to build .venv with (3.10 or newer)
# TORCH_INDEX=URL       take PyTorch from another package index, for instance a CPU-only one
# JOBS=8                test processes

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
SOAK_NETWORKS ?= 100000
FUZZ_TARGET ?= all
FUZZ_SECONDS ?= 600
BIN := .venv/bin
STAMP := .venv/.installed
DEVELOP := .venv/.develop

.PHONY: verify test test-all lint soak fuzz mutation bench paper bench-gpu clean

verify: $(STAMP)
	$(BIN)/polytriton run --instances examples/instances.csv

test: lint
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: test
	$(BIN)/python -m pytest -n $(JOBS) -m slow

lint: $(DEVELOP)
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: $(DEVELOP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak --networks $(SOAK_NETWORKS) --jobs $(JOBS) --folder build/soak
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.oracle.graphs --graphs $(SOAK_NETWORKS) --jobs $(JOBS) --folder build/graphs

fuzz: $(DEVELOP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ_TARGET) --seconds $(FUZZ_SECONDS) --jobs $(JOBS) --findings build/findings --corpus build/corpus

mutation: $(DEVELOP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation --jobs $(JOBS)

bench: $(STAMP)
	$(BIN)/python -m bench.suite $(PARTS) $(ARGS)

# scikit-learn has the digits that stand in for MNIST where there is no --mnist FOLDER.
paper: $(STAMP)
	$(BIN)/python -c 'import sklearn' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt scikit-learn
	$(BIN)/python -m bench.paper $(PARTS) $(ARGS)

bench-gpu:
	PYTHONPATH=. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m bench.gpu $(PARTS) $(ARGS)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: what depends on it must not choose its build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "polytriton needs Python 3.10 or newer; try: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	$(BIN)/python -m polytriton.runtime.cpu.loops
	touch $@

$(DEVELOP): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
