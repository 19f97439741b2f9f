# make lab     JupyterLab on the tour           make test      every test this machine can run
# make demo    real ranks, timed and compared   make sanitize  native tests under address, undefined, thread
# make build   the package, editable            make bench     side-by-side benchmarks    make fuzz   1 M broken files
# make rig     machines with RDMA NICs, once    make test-rdma tests on them
# make sanitize-gpu  tests/gpu under compute-sanitizer, where a GPU and the CUDA toolkit are
#
# Needs python3 >= 3.10, a C++20 compiler and make; all else is installed into $(VENV). Re-running rebuilds only what changed.
# Variables: PYTHON, VENV, LAB_ARGS (say "--no-browser --port 8899"), DEMO_ARGS, TEST_ARGS, BENCH_ARGS (say "--quick"), FUZZ_INPUTS,
# DRAWS (share of random cases that tests draw: all, or say 0.5; a quarter by default).

PYTHON ?= python3
VENV ?= .venv
LAB_ARGS ?=
DEMO_ARGS ?= --out out
TEST_JOBS ?= 2
TEST_ARGS ?=
DRAWS ?=
BENCH_ARGS ?=
FUZZ_INPUTS ?= 1000000
SECONDS ?= 60
SEED ?= 1
SANITIZERS ?= address,undefined thread
COMPUTE_SANITIZER ?= compute-sanitizer
GPU_TOOLS ?= memcheck racecheck synccheck

BIN := $(VENV)/bin
DEPS := $(VENV)/.ccl_lab_deps
BUILT := $(VENV)/.ccl_lab_built
# One folder for native tests and for the programs that Python tests run (tests/native_build.py has the same options).
CONFIGURE = PATH="$(abspath $(BIN)):$$PATH" cmake -S native -B build/tests -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCCL_LAB_TESTS=ON -DCCL_LAB_BENCH=ON -DCCL_LAB_BIND=OFF >/dev/null
NATIVE := $(shell find native -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.cmake' \))

.PHONY: lab demo test test-native native-tests rig test-rdma build bench clean fuzz fuzz-faults soak sanitize sanitize-gpu
.DEFAULT_GOAL := build

build: $(BUILT)

$(BIN)/python:
	@PYTHON="$(PYTHON)" sh tools/make_venv.sh "$(VENV)"

$(DEPS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group build
	@touch $@

# The build directory is kept, so that a second run compiles only what changed.
$(BUILT): $(DEPS) $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e ".[lab,test,dev]"
	@touch $@

lab: build
	$(BIN)/ccl-lab lab $(LAB_ARGS)

demo: build
	$(BIN)/ccl-lab demo $(DEMO_ARGS)

# Machines of the rig have a core each and their NICs have timers, so their tests come after the others, one by one.
test: build test-native
	$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadfile --ignore tests/rdma --expected-skips tests/expected_skips.txt \
	  $(if $(DRAWS),--draws $(DRAWS)) $(TEST_ARGS)
	$(MAKE) --no-print-directory test-rdma TEST_ARGS=

bench: build
	$(BIN)/python -m bench
	$(BIN)/ccl-lab bench $(BENCH_ARGS)

fuzz: build
	$(BIN)/python tests/fuzz/fuzz_codec.py --inputs $(FUZZ_INPUTS)
	$(BIN)/python tests/fuzz/fuzz_trace.py --inputs $(FUZZ_INPUTS)
	$(BIN)/python tests/fuzz/fuzz_import.py --inputs $(FUZZ_INPUTS)

# Seeded faults on the virtual network for SECONDS, from SEED on; a failing seed prints how to see it again.
fuzz-faults: $(DEPS)
	@$(CONFIGURE)
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/tests --target fuzz_faults -- --quiet
	build/tests/tests/fuzz_faults --seconds $(SECONDS) --first-seed $(SEED)

# Eight hours of random faults in virtual time, ten minutes live.
soak: build
	@$(CONFIGURE)
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/tests --target fuzz_faults -- --quiet
	build/tests/tests/fuzz_faults --soak-hours 8
	$(BIN)/python -m bench soak

native-tests: $(DEPS)
	@$(CONFIGURE)
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/tests -- --quiet

test-native: native-tests
	PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir build/tests --output-on-failure

# The kernel of the machines in tests/rig: minutes, once. Status 3 is a machine that cannot have them: it says why, and their tests skip.
rig: $(BIN)/python
	@$(BIN)/python -m tests.rig --build || [ $$? -eq 3 ]

test-rdma: build native-tests rig
	$(BIN)/python -m pytest -q tests/rdma --expected-skips tests/expected_skips.txt $(TEST_ARGS)

sanitize: $(DEPS)
	@for kind in $(SANITIZERS); do \
	  echo "== native tests under the $$kind sanitizer"; \
	  PATH="$(abspath $(BIN)):$$PATH" cmake -S native -B build/sanitize-$$kind -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DCCL_LAB_SANITIZE=$$kind -DCCL_LAB_TESTS=ON -DCCL_LAB_BIND=OFF -DCCL_LAB_CUDA=OFF >/dev/null && \
	  PATH="$(abspath $(BIN)):$$PATH" cmake --build build/sanitize-$$kind && \
	  PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; \
	done

# Of what is built: `make build` before. Ranks are processes, which are followed too.
sanitize-gpu: | $(BIN)/python
	@command -v $(COMPUTE_SANITIZER) >/dev/null || { echo "$(COMPUTE_SANITIZER) is not in PATH: it comes with the CUDA toolkit"; exit 1; }
	@for tool in $(GPU_TOOLS); do \
	  echo "== tests/gpu under $$tool"; \
	  $(COMPUTE_SANITIZER) --tool $$tool --target-processes all --error-exitcode 9 $(BIN)/python -m pytest -q tests/gpu $(TEST_ARGS) || exit 1; \
	done

clean:
	rm -rf build dist out .pytest_cache .ruff_cache .hypothesis .import_linter_cache $(BUILT)
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
