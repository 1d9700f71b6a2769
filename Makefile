# The one entry point: `make help`. Another Python: `make test PYTHON=python3.13`.
PYTHON ?= python3

# pyenv hides every version that is not selected, even under its exact name, such as python3.12.
ifneq ($(shell command -v pyenv 2>/dev/null),)
export PYENV_VERSION := $(shell pyenv version-name):$(shell pyenv versions --bare | paste -s -d : -)
endif
found := $(shell PYENV_VERSION='$(PYENV_VERSION)' '$(PYTHON)' -c 'import sys; \
    new = sys.version_info >= (3, 11); \
    print(("use %d.%d " if new else "Python %d.%d at ") % sys.version_info[:2] + sys.executable)' \
    2>&1 </dev/null || true)
python = $(if $(filter use,$(firstword $(found))),$(wordlist 3,99,$(found)),$(error d2lpar needs \
    Python 3.11 or newer, but $(PYTHON) is "$(found)"; name another, for example: \
    make test PYTHON=python3.12))

# An environment for each minor version: .venv/3.11, .venv/3.12, ... The last step of the set-up
# writes a stamp, whose name is a checksum of the inputs: this path, the lock, and pyproject.toml up
# to its first [tool] table.
venv := .venv/$(word 2,$(found))
stamp := $(venv)/from-$(shell { pwd && cat requirements.txt && sed '/^\[tool/q' pyproject.toml; } \
    | cksum | cut -d ' ' -f 1)
uv := .venv/$(shell sed -n 's/^uv==/uv-/p' requirements.txt)
run = @export VIRTUAL_ENV='$(CURDIR)/$(venv)' PATH='$(CURDIR)/$(venv)/bin':"$$PATH"; exec

# pip, uv, Jupyter and matplotlib need a home that they can write.
ifeq ($(shell test -w "$$HOME" && echo writable),)
export HOME := $(shell mkdir -p .venv/home && pwd)/.venv/home
endif

# Python 3.11 reads the path of an editable install in the encoding of the locale, which may be ASCII.
ifneq ($(filter C POSIX,$(LC_ALL)),)
export LC_ALL := C.UTF-8
endif

# Chapters and solutions are pairs: x.md is the source, and Colab opens x.ipynb.
sources = $(shell grep -l '^jupytext:' book/*.md book/solutions/*.md 2>/dev/null)

# Two targets at a time would disturb each other's timings.
.NOTPARALLEL:
targets := help book test lint bench evidence record cluster libraries serve matrix sync lock release clean
.PHONY: $(targets) environment set-up install

help:  ## list the targets
	@awk -F ':.*## *' '/^[a-z]+:.*##/ { printf "make %-8s %s\n", $$1, $$2 }' Makefile

$(filter-out help clean,$(targets)): environment

book:  ## build the book if something changed; a false claim stops it (FORCE=1, or SOLUTIONS=0)
	@mkdir -p _build
	$(run) python .ci/one_at_a_time.py _build/lock \
	    python .ci/build_book.py $(if $(FORCE),--force) \
	    $(if $(filter 0,$(SOLUTIONS)),--without-solutions)

test: lint book  ## lint, build the book, then run all tests
	$(run) python -m pytest -m "not timed and not weekly" --dist loadgroup --numprocesses 3  # Many tests wait.
	$(run) python -m pytest -m timed

lint:  ## check style, formatting and the layers of the package
	$(run) ruff check .
	$(run) ruff format --check .
	$(run) lint-imports --no-logo

bench:  ## measure the cost of the package itself against its promises
	$(run) python evidence/bench.py

evidence:  ## test each claim without its cause; or: make evidence REPEATS=9
	@mkdir -p _build
	$(run) python .ci/one_at_a_time.py _build/evidence.lock \
	    python -u evidence/check_claims.py \
	    $(if $(REPEATS),--repeats $(REPEATS)) $(if $(LOAD),--load $(LOAD)) \
	    $(if $(CORES),--cores $(CORES)) $(if $(DEVICES),--devices $(DEVICES)) $(PAGES)

record:  ## run the notebooks and keep this machine's results: make record NAME=my-machine
	$(run) python evidence/record.py "$(NAME)" $(PAGES)

# Not in `make help`: this target installs packages of the system.
cluster:  # install MPI and Slurm (Debian), and start the script for clusters with them
	$(if $(filter-out 0,$(shell id -u)),sudo) apt-get install -q -y --no-install-recommends \
	    openmpi-bin slurm-wlm munge
	$(run) python -m pytest tests/test_cluster.py

# Not in `make help` either: this target installs other libraries, for one run.
libraries:  # try `watch`, and the recipes, on programs that use them
	$(run) uv run --no-sync --active --with flax --with equinox --with grain \
	    python -m pytest -rs tests/_watch/test_libraries.py tests/book/test_in_your_own_code.py

serve:  ## serve the built book on this machine (PORT=8000)
	@test -f _build/html/book/index.html || { echo "There is no book yet: make book" >&2; exit 1; }
	$(run) python -m http.server --bind 127.0.0.1 --directory _build/html $(or $(PORT),8000)

matrix:  ## test the package and the notebooks on every Python 3.11-3.13, with jax 0.7.2 and newest
	$(run) nox

sync:  ## write the .ipynb of each chapter anew from its .md
	$(run) python .ci/sync.py $(sources)

lock:  ## write requirements.txt anew from pyproject.toml, with the newest versions
	$(run) uv pip compile --universal --python-version 3.11 --upgrade --extra book --group dev \
	    --custom-compile-command "make lock" pyproject.toml --output-file requirements.txt

release:  ## make this tree the release of a tag: make release VERSION=0.4.0 (see RELEASING.md)
	$(run) python .ci/release.py "$(VERSION)" $(sources)

clean:  ## remove what was built, and the environments
	rm -rf _build .venv .nox .pytest_cache .ruff_cache .import_linter_cache

# Another make may be doing the same; after that, nothing is left to do.
ifeq ($(and $(realpath $(venv)/bin/python),$(wildcard $(stamp))),)
environment:
	@mkdir -p .venv && '$(python)' .ci/one_at_a_time.py .venv/lock $(MAKE) --silent set-up

set-up:
	echo "Setting up $(venv) from requirements.txt, once; less than a minute ..." >&2
	$(MAKE) --silent install >.venv/log 2>&1 || { \
	    if grep -qiE 'connect|dns|timed out|No matching distribution' .venv/log; then \
	        echo "$(venv) could not be set up: the first time this needs a network (see .venv/log)."; \
	    else \
	        echo "$(venv) could not be set up; .venv/log ends with:"; \
	        tail -n 12 .venv/log; \
	    fi >&2; exit 1; }

# Without a stamp, from nothing: an interrupted set-up leaves incomplete packages. The lock comes
# first, then d2lpar without isolation: hatchling, which builds it, comes from the lock. Compile now:
# where PYTHONDONTWRITEBYTECODE is set, as in many containers, each of some hundred processes would
# compile JAX again, for a second. Name the Python: where UV_SYSTEM_PYTHON is set, as in many
# containers, uv would otherwise remove packages from the Python of the system.
install: $(uv)/bin/uv
	$(uv)/bin/uv venv --quiet --relocatable --python '$(python)' $(venv) \
	    $(if $(wildcard $(venv)/from-*),--allow-existing,--clear)
	rm -f $(venv)/from-*
	$(uv)/bin/uv pip sync --python $(venv)/bin/python --quiet --compile-bytecode requirements.txt
	$(uv)/bin/uv pip install --python $(venv)/bin/python --quiet --no-deps --no-build-isolation -e .
	touch $(stamp)

$(uv)/bin/uv:
	'$(python)' -m venv --clear $(uv)
	$(uv)/bin/python -m pip install --quiet "$$(grep '^uv==' requirements.txt)"
endif
