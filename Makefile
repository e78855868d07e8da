# `make demo` shows Octavo at work, `make test` checks it. Every target sets up .venv itself; stamp files in it keep
# each step from being done twice.

PYTHON ?= python3
VENV := .venv
# Compiling what is never imported costs a minute; Python compiles the rest when it is first used.
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --no-compile
STAMPS := $(VENV)/.stamps
# Anything looser than this pulls a CUDA build of torch, several gigabytes. Installed first, so that no later
# requirement looks for another.
TORCH := torch==2.13.0
NATIVE_SOURCES := CMakeLists.txt $(foreach folder,native native/* native/*/*,$(wildcard $(folder)/*.cpp $(folder)/*.hpp))
# Prints requirements of pyproject.toml, one a line: `runtime`, `build` or the name of an extra.
REQUIREMENTS := $(VENV)/bin/python .ci/requirements.py

.PHONY: demo test test-slow test-emulated lint format bench bench-setup bench-growth clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: $(STAMPS)/octavo $(STAMPS)/demo
	$(VENV)/bin/octavo demo

test: $(STAMPS)/octavo $(STAMPS)/test
	$(VENV)/bin/python -m pytest -q -m "not slow"

test-slow: $(STAMPS)/octavo $(STAMPS)/test
	$(VENV)/bin/python -m pytest -q -m slow

# Kernels for processors that this machine is not: AVX-512 and AMX over SIMDe, NEON cross-compiled and under qemu. Says
# what is missing (on Debian: apt install libsimde-dev g++-aarch64-linux-gnu qemu-user).
test-emulated: $(STAMPS)/octavo $(STAMPS)/test
	$(VENV)/bin/python -m pytest -q -rs -m slow tests/native/test_units.py

lint: $(STAMPS)/runtime $(STAMPS)/lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(filter-out CMakeLists.txt,$(NATIVE_SOURCES))
	$(VENV)/bin/mypy

format: $(STAMPS)/lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(filter-out CMakeLists.txt,$(NATIVE_SOURCES))

# Measures beside the peers that are here and says why the others are not; `bench-setup` brings them (builds llama.cpp,
# downloads the others: half an hour and 3 GB). Wants a machine with nothing else to do.
bench: $(STAMPS)/octavo $(STAMPS)/bench
	$(VENV)/bin/python -m benchmarks.peers setup transformers
	mkdir -p build
	$(VENV)/bin/python -m benchmarks.peers run --streams --output build/peers.json
	$(VENV)/bin/python -m benchmarks.peers plot build/peers.json

bench-setup: $(STAMPS)/octavo $(STAMPS)/bench
	$(VENV)/bin/python -m benchmarks.peers setup

bench-growth: $(STAMPS)/octavo $(STAMPS)/bench
	$(VENV)/bin/python -m benchmarks.growth

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Octavo needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/runtime: $(STAMPS)/venv pyproject.toml .ci/requirements.py
	$(PIP) $(TORCH)
	$(REQUIREMENTS) runtime > $(STAMPS)/runtime.txt
	$(PIP) $(TORCH) -r $(STAMPS)/runtime.txt
	touch $@

$(STAMPS)/build: $(STAMPS)/venv pyproject.toml .ci/requirements.py
	$(REQUIREMENTS) build > $(STAMPS)/build.txt
	$(PIP) -r $(STAMPS)/build.txt
	touch $@

$(STAMPS)/octavo: $(STAMPS)/runtime $(STAMPS)/build $(NATIVE_SOURCES) LICENSE
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# Extras of pyproject.toml that need the run-time requirements.
$(STAMPS)/demo $(STAMPS)/test $(STAMPS)/bench: $(STAMPS)/runtime
	$(REQUIREMENTS) $(@F) > $@.txt
	$(PIP) $(TORCH) -r $@.txt
	touch $@

$(STAMPS)/lint: $(STAMPS)/venv pyproject.toml .ci/requirements.py
	$(REQUIREMENTS) lint > $(STAMPS)/lint.txt
	$(PIP) -r $(STAMPS)/lint.txt
	touch $@
