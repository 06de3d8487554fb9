PYTHON ?= python3
# Hydra's parser is packaged in the old way, about which older versions of pip warn without --use-pep517.
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517

.PHONY: run test lint docs audit constraints clean help

run: .venv/installed  ## train, evaluate and sample: make run ARGS="encoding=path seed=1"
	.venv/bin/python main.py $(ARGS)

test: $(if $(TESTS),.venv/installed-test,lint)  ## lint, then all tests; only some tests: make test TESTS=tests/encodings
	.venv/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

lint: .venv/installed-test  ## style, types, and which folder may import which
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@mkdir -p .venv/named && ln -sfn ../.. .venv/named/bearings  # import-linter and basedpyright go by the names of folders
	PYTHONPATH=.venv/named .venv/bin/lint-imports --no-cache
	.venv/bin/basedpyright

docs: .venv/installed-docs  ## write the documentation to site/, and the table of encodings to README.md
	@mkdir -p build/api .venv/named && ln -sfn ../.. .venv/named/bearings
	PYTHONPATH=.venv/named .venv/bin/python -m bearings.documentation
	PYTHONPATH=.venv/named NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true .venv/bin/mkdocs build --strict

audit: .venv/installed  ## look up known vulnerabilities of the installed packages; needs pypi.org
	$(PIP) pip-audit
	.venv/bin/pip-audit --local --skip-editable

constraints: .venv/installed-test  ## write the installed versions, PyTorch's left out, to constraints.txt
	.venv/bin/python -m pip freeze --exclude-editable | grep -Eiv '^(torch|triton|nvidia|cuda)' > constraints.txt

clean:  ## delete the virtual environment
	rm -rf .venv

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1	/p' $(MAKEFILE_LIST)

.venv/installed: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "installing bearings into .venv (a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

.venv/installed-test: .venv/installed
	$(PIP) --editable ".[test]"
	@touch $@

.venv/installed-docs: .venv/installed
	$(PIP) --editable ".[docs]"
	@touch $@
