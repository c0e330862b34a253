# Two commands matter: `make demo` and `make test`; for every edit there is `make quick`. Each installs what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 200
SCENARIO ?= cluster
MINUTES ?= 30
SAMPLE ?= 0
STAMP  := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo

# What is compiled is kept: else every process that a test starts compiles all of Weir anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo demo quick quick-tests test lint sim mutants soak bench compare-rabbitmq compare-rocketmq clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(STAMP)  ## a virtual environment with Weir and all it needs for tests and benchmarks (2.3 GB)

setup-demo: $(DEMO_STAMP)  ## the smaller one: Weir, Spark, and the clients of the demo and the README (1.5 GB)

# One script installs both sets: it shows its progress, and only one of them changes an environment at a time.
$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Weir needs Python 3.11 or later; try: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) tools/environment.py $(VENV) $(if $(filter $(DEMO_STAMP),$@),demo,dev)

demo: setup-demo  ## a tour: storage that heals, Pulsar's and Kafka's own clients, streaming SQL on Spark
	$(BIN)/python -m weir.cli.main demo

lint: setup  ## formatting, lint, strict types, the import rule
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: setup  ## for every edit: lint, types and the tests that need no process and no Spark; under two minutes
	@$(MAKE) --no-print-directory -j2 lint quick-tests

quick-tests: setup
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=quick -m 'not process and not spark and not slow and not soak'

test: setup  ## everything: lint, unit, protocol, process and simulation tests; prints its ten slowest
	$(BIN)/pytest -n 4 --dist worksteal --durations=10 -m 'not soak'

sim: setup  ## SEEDS=N random seeds of SCENARIO=cluster (the storage), broker (over it), kafka (its clients), multibroker, queues or half (half messages, recalls, message groups); balance: one large run
	$(BIN)/python -m weir.testing.sim --scenario $(SCENARIO) --seeds $(SEEDS)

mutants: setup  ## break the write path on purpose, and list what no test notices; MODULE=stream.appender, SAMPLE=N of each module
	$(BIN)/python -m tools.mutants --sample $(SAMPLE) $(if $(MODULE),--module $(MODULE))

soak: setup  ## MINUTES=30 of a real cluster under load, its processes killed and stopped in turn
	$(BIN)/pytest -n 0 -m soak
	$(BIN)/python -m weir.testing.soak.run --minutes $(MINUTES)

bench: setup  ## storage beside the raw limits, the broker beside Apache Pulsar; results under bench/results
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.kafka_tools || test $$? -eq 77
	$(BIN)/python -m bench.rocketmq_load || test $$? -eq 77

compare-rocketmq: setup  ## ask Apache RocketMQ what RocketMQ's tests ask of Weir, and write down its answers
	$(BIN)/python -m tests.gateway.rocketmq.behaviour || test $$? -eq 77

compare-rabbitmq: setup  ## ask Debian's RabbitMQ all that AMQP's tests ask of Weir, and write down its answers
	$(BIN)/python -m tests.gateway.amqp.behaviour record || test $$? -eq 77

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .hypothesis build
