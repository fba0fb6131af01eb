# Everything here needs only Python 3.11+, make and a package registry. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
ROUNDS ?= 20
MINUTES ?= 5
IMAGES ?= 50000
INPUTS ?= 1000000
KILLS ?= 3400
SEEDS ?= 1000
COVERING = tests/unit tests/contract tests/store tests/store_sqlite tests/store_postgres tests/queue tests/move \
  tests/outbox tests/dispatcher tests/receiver
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format docs coverage mutation soak proof simulate bench clean

help:  ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	fi
	@touch $@

install: $(STAMP)  ## Create .venv and install the project with its development tools

demo: $(STAMP)  ## Run the main job: real orders, two dispatchers, one of them killed
	@$(BIN)/python -m asyncqueue demo $(ARGS)

lint: $(STAMP)  ## ruff (format and lint), mypy, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## The gate: lint, then all tests
	$(BIN)/python -m pytest -n 3 --dist worksteal --max-worker-restart=0 $(ARGS)

format: $(STAMP)  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## Write docs/lifecycle.md, queue.md, cli.md and reliability.md from the code
	$(BIN)/python docs/make_lifecycle.py
	$(BIN)/python docs/make_queue.py
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_reliability.py

coverage: $(STAMP)  ## Branch coverage: 100 % of lifecycle, worker and stores, 95 % of dispatcher and receiver
	$(BIN)/python -m pytest -n 2 --dist loadfile --timeout=300 --cov --cov-report= $(COVERING) $(ARGS)
	$(BIN)/coverage report --fail-under=100 --include='asyncqueue/lifecycle.py,asyncqueue/worker.py,asyncqueue/stores/*'
	$(BIN)/coverage report --fail-under=95 --include='asyncqueue/dispatcher/*'
	$(BIN)/coverage report --fail-under=95 --include='receiver/*'

mutation: $(STAMP)  ## Break the core in one place after the other; ARGS='asyncqueue/worker.py --sample 50 --seed 1'
	$(BIN)/python -m tests.mutation $(ARGS)

soak: $(STAMP)  ## Kill dispatchers and the receiver: ROUNDS=20, then MINUTES=5 (0: none) of mixed traffic
	$(BIN)/python -m tests.system.soak --rounds $(ROUNDS)
	$(BIN)/python -m tests.system.endurance --minutes $(MINUTES) $(ARGS)
	$(BIN)/python -m tests.system.chaos
	$(BIN)/python -m tests.system.postgres_chaos

proof: $(STAMP)  ## The long forms of docs/proof.md: models, power cuts (IMAGES=), I/O errors, kills (KILLS=), hostile input (INPUTS=)
	$(BIN)/python -m tests.model.explore --redrives-max 1 --clock-steps 0
	$(BIN)/python -m tests.model.explore --ttl 1
	$(BIN)/python -m tests.power.judge --images $(IMAGES)
	$(BIN)/python -m tests.io_errors.injection
	$(BIN)/python -m tests.kill.killing --kills $(KILLS)
	$(BIN)/python -m tests.hostile --inputs $(INPUTS)

simulate: $(STAMP)  ## Run the shipped code on a virtual clock under SEEDS=1000 different faults
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

$(BENCH_STAMP): $(STAMP)
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev,bench,peers,fast]'; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench,peers,fast]'; \
	fi
	@touch $@

bench: $(BENCH_STAMP)  ## The short benchmarks beside the peers, less than ten minutes; ARGS='--only drain'
	$(BIN)/python -m benchmarks run $(ARGS)

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
