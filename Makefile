# make run [ARGS="encoding=path seed=1"]   train, evaluate and sample
# make test [TESTS="tests/test_laws.py"]    lint, then the test suite
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test lint clean

run: .venv/installed
	.venv/bin/python main.py $(ARGS)

test: lint
	.venv/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

lint: .venv/installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

.venv/installed: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "installing bearings into .venv (a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

.venv/installed-test: .venv/installed
	$(PIP) --editable ".[test]"
	@touch $@

clean:
	rm -rf .venv
