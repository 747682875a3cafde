# The CPU set-up and everything that runs in it. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON = python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check
LOCK := requirements/cpu.txt
TORCH := $(shell grep '^torch==' $(LOCK))
TORCH_INDEX := https://download.pytorch.org/whl/cpu
JUPYTER_AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# $(call with_torch,COMMAND,OPTION): PyPI's torch is the CUDA build. COMMAND runs with the indexes
# that pip is set up with and, where they lack the CPU build, once more with OPTION TORCH_INDEX.
define with_torch
$(1) || { echo "No $(TORCH) in the indexes that pip is set up with: trying $(TORCH_INDEX)"; $(1) $(2) $(TORCH_INDEX); }
endef

.PHONY: help install demo test lint lab bench-gpu readme lock upgrade clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 18

install: .venv/package.stamp ## set up .venv from the lock (the other targets do it when needed)

demo: install ## run the three-slot experiment, write reports/02_step_time_breakdown.html
	$(BIN)/wsync run notebooks/02_step_time_breakdown.ipynb --output reports --overwrite --report

test: lint ## every check and every test
	$(BIN)/pytest --durations=10

lint: install ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

lab: install ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab $(JUPYTER_AS_ROOT) notebooks

# In the GPU set-up, not in .venv: environment.yml. MPS is used where its daemon runs.
bench-gpu: ## time device transports into a real vLLM (on a GPU machine, its environment active)
	mkdir -p reports
	python -m wsync_lab.cli bench --engine vllm --payload qwen2.5-3b --transports cuda_vmm,cuda_ipc \
	  --slot-bytes 2147483648 --warmups 3 --output reports/bench-gpu-$$(date +%Y%m%dT%H%M%S).jsonl

readme: install ## write the README's table from data/
	$(BIN)/python -m wsync_lab.reports.readme

lock: install ## write the lock after requirements/*.in changed, keeping locked versions
	@$(call with_torch,$(BIN)/python requirements/lock.py,-- --extra-index-url)

upgrade: install ## write the lock with the newest versions that requirements/*.in allow
	@$(call with_torch,$(BIN)/python requirements/lock.py --upgrade,-- --extra-index-url)

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis wsync_lab.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

# A new environment for every change of the lock: nothing that left the lock stays installed.
.venv/lock.stamp: $(LOCK)
	@$(PYTHON) requirements/check_machine.py
	@echo "[1/4] .venv"
	@$(PYTHON) -m venv --clear .venv
	@echo "[2/4] $(TORCH)"
	@$(call with_torch,$(PIP) install --no-deps "$(TORCH)",--index-url)
	@echo "[3/4] every package of $(LOCK)"
	@$(PIP) install --no-deps --no-compile -r $(LOCK)
	@touch $@

.venv/package.stamp: .venv/lock.stamp pyproject.toml
	@echo "[4/4] wsync_lab"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
