# Everything here sets itself up on a fresh machine with Python 3.11 and a compiler.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST ?=
# Tests without a server run on all cores; servers one at a time, because each fills two.
JOBS   ?= auto
SECTIONS ?=
SEED   ?= 1
FAULTS ?= 20
STAGES ?= 2

.PHONY: help setup demo demo-instruct demo-openvino test lint bench chaos chaos-report clean
help:
	@echo "make demo   serve the bundled hybrid model through vLLM on two CPU stages and ask it"
	@echo "make demo-instruct   the same with a real instruct model (fetches about 100 MB)"
	@echo "make demo-openvino   the same model as OpenVINO IR, through arcpp gateway on two CPU stages"
	@echo "make test   lint, types, layers, docs checks and all tests (45 to 60 minutes on two cores)"
	@echo "make lint   the part of it that takes seconds"
	@echo "make bench  measure, and rewrite docs/benchmarks.md"
	@echo "make chaos  lose stages at random under load (SEED=1 FAULTS=20 STAGES=2); runs add up"
	@echo "make chaos-report   write what all runs so far say to docs/benchmarks.md"
	@echo "make clean  remove $(VENV) and caches"

setup:
	@$(PYTHON) .ci/setup.py $(VENV)

demo: setup
	@$(BIN)/python -m tests.demo.vllm_demo

demo-instruct: setup
	@$(BIN)/python -m tests.demo.instruct_demo

demo-openvino: setup
	@$(BIN)/python -m tests.demo.openvino_demo

test: lint
	$(BIN)/python -m pytest -m "not vllm" -n $(JOBS) --dist loadfile $(PYTEST) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m vllm --durations=10 $(PYTEST) || [ $$? -eq 5 ]

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m tests.bench $(SECTIONS)

chaos: setup
	@$(BIN)/python -m tests.chaos --seed $(SEED) --faults $(FAULTS) --stages $(STAGES)

chaos-report: setup
	@$(BIN)/python -m tests.chaos --report

clean:
	rm -rf $(VENV) .venv-ci .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
