# Each target makes what it needs, the virtual environment included. Python: make PYTHON=python3.12 ...
PYTHON ?= python3
export PYTHON
BIN := .venv/bin
UV = $(shell command -v uv || echo $(BIN)/uv)
HOUSE := tests/test_house_rules.py tests/test_imports.py tests/test_public_names.py

.DEFAULT_GOAL := help
.PHONY: help demo test coverage check format bench docs overshoot cases agreement fuzz sizes parity lock lowest newest wheel-test clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile | awk -F': ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/.stamp: requirements/dev.txt pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh .venv requirements/dev.txt editable
	@touch $@

.venv-lowest/.stamp: requirements/lowest.txt pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh .venv-lowest requirements/lowest.txt editable
	@touch $@

.venv-bench/.stamp: requirements/bench.txt pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh .venv-bench requirements/bench.txt editable
	@touch $@

.venv-parity/.stamp: requirements/parity.txt pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh .venv-parity requirements/parity.txt editable
	@touch $@

demo: .venv/.stamp  ## watch a real model work inside a budget (ARGS="--small")
	@$(BIN)/endstop demo $(ARGS)

test: .venv/.stamp  ## run the tests (ARGS="-k budget"; ARGS="-n 0" in one process)
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

coverage: .venv/.stamp  ## run the tests and demand full branch coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: .venv/.stamp  ## format, lint, types, import contracts, house rules, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q $(HOUSE) tests/test_docs.py

format: .venv/.stamp  ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv-bench/.stamp  ## measure speed beside the peers (ARGS=...)
	.venv-bench/bin/python -m benchmarks $(ARGS)

docs: .venv/.stamp  ## run the documentation's examples and follow its links
	$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

overshoot: .venv/.stamp  ## show by how much each limit can be overrun
	@$(BIN)/python scripts/overshoot.py

cases: .venv/.stamp  ## run the reported symptoms, as they are today and with endstop (ARGS=--write)
	@$(BIN)/python scripts/cases.py $(ARGS)

agreement: .venv/.stamp  ## compare the audit with real runs of 41 wirings at every limit
	@$(BIN)/python scripts/audit_agreement.py $(ARGS)

parity: .venv-parity/.stamp  ## run LangChain's own agent tests on the cutover (ARGS="--json")
	@.venv-parity/bin/python scripts/parity.py $(ARGS)

fuzz: .venv/.stamp  ## compare 50,000 random turns on the kernel with the same on LangGraph (EXAMPLES=...)
	ENDSTOP_FUZZ_EXAMPLES=$(or $(EXAMPLES),50000) $(BIN)/python -m pytest -q tests/cutover/test_parity_fuzz.py $(ARGS)

sizes: .venv/.stamp  ## print the lengths of files and functions
	@$(BIN)/python scripts/sizes.py

lock: .venv/.stamp  ## renew the lock files (ARGS="--upgrade" takes newer versions)
	@sh scripts/lock.sh $(UV) $(ARGS)

lowest: .venv-lowest/.stamp  ## run the tests on the lowest versions that pyproject.toml admits
	.venv-lowest/bin/python -m pytest -q $(ARGS)

newest:  ## run the tests on the newest Python of this machine, where it is newer than PYTHON
	@newest=$$(sh scripts/newest_python.sh); \
	if [ -z "$$newest" ]; then echo "no Python newer than $(PYTHON) is installed here"; exit 0; fi; \
	$(MAKE) --no-print-directory .venv-newest/.stamp PYTHON="$$newest" && .venv-newest/bin/python -m pytest -q $(ARGS)

.venv-newest/.stamp: requirements/dev.txt pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh .venv-newest requirements/dev.txt editable
	@touch $@

wheel-test: .venv/.stamp  ## build the wheel and try it without extras, away from the sources
	rm -rf build .venv-wheel
	$(BIN)/hatchling build -t wheel -d build
	@sh scripts/venv.sh .venv-wheel requirements/base.txt build/endstop-*.whl
	cd build && ../.venv-wheel/bin/python -I ../scripts/wheel_test.py

clean:  ## remove everything that can be made again
	rm -rf .venv .venv-* build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
