# make run [ARGS="encoding=path seed=1"]   train, evaluate and sample
# make test [TESTS="tests/encodings"]    lint, then the test suite
# make audit                                look up known vulnerabilities of the installed packages; needs pypi.org
PYTHON ?= python3
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test lint audit clean

run: .venv/installed
	.venv/bin/python main.py $(ARGS)

test: lint
	.venv/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

lint: .venv/installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

audit: .venv/installed
	$(PIP) pip-audit
	.venv/bin/pip-audit --local --skip-editable

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
