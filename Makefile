# SPDX-License-Identifier: Apache-2.0
# Short names for the common jobs; CMake does the work. Each job sets the machine up first, which
# costs nothing when everything is there. `make check` is what CI runs.
.PHONY: help build demo test test-nvme check lint format bench fuzz asan tsan install clean
.PHONY: setup configure torture soak soak-calls soak-python test-docs test-engines docs wheel
.PHONY: needs-wheel soak-python-asan soak-python-tsan test-wheel
.PHONY: lab bench-codecs ptx test-gpu gpu-bundle deb
.DEFAULT_GOAL := help

BUILD := build
PREFIX ?= /usr/local
# A path of the user's as one word of a shell command, blanks and all.
blank := $(subst ,, )
shell_word = $(subst $(blank),\$(blank),$(1))
# Ninja where it is installed and the folder is new; an existing folder keeps its generator.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)
# Real traces, where they lie beside the checkout; tests that need them skip otherwise.
ifneq ($(wildcard ../shared/data/.),)
export KVT_DATA_DIR ?= $(abspath ../shared/data)
endif
# The job server of this make must not reach the one that CMake may start, nor its level: with that
# the other one would name every folder it enters.
CMAKE := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL cmake
# Long output goes to a log in build/, the terminal shows one line per step; V=1 shows everything.
STEP := tools/step.sh $(BUILD)
# Only the tests whose names match this expression, such as TESTS='unit/test_store|install/'.
TESTS ?=
export V ?= 0

help:
	@echo "make build    the library and the command, in Release: build/kvterrace"
	@echo "make lab      the program of the benches too: build/kvlab"
	@echo "make demo     profiles this machine, replays a workload, lets a model answer from a store"
	@echo "make test     builds, then runs all tests"
	@echo "make check    what CI runs: tests, lint, short benches"
	@echo "make lint     include direction, purity, banned calls, formatting"
	@echo "make format   clang-format over all sources"
	@echo "make bench    benches of this machine"
	@echo "make bench-codecs  what bases of the transform codec save and cost (MODEL= TEXTS= JSON=1"
	@echo "              QUICK=1)"
	@echo "make asan     all tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan     all tests under ThreadSanitizer"
	@echo "make torture  kills, power cuts and faults at length (CYCLES=1000 SEED=1), about 15 minutes"
	@echo "make soak     16 threads, device changes and load from outside (SECONDS=1800)"
	@echo "make soak-calls  16 threads, all calls of engines, drives that go (CALLS_SECONDS=600)"
	@echo "make test-engines  the adapters against the real engines (7 GB, once)"
	@echo "make soak-python  16 threads and 10,000 tasks of Python on one store (PYTHON_SECONDS=300);"
	@echo "              soak-python-asan, soak-python-tsan under a sanitizer"
	@echo "make test-nvme  the nvme tests, in an emulated machine with four drives"
	@echo "make test-gpu  the tests that need a GPU, about a minute; without one it exits with 77"
	@echo "make gpu-bundle  programs, libraries and run.sh for a machine that has a driver alone"
	@echo "make docs     the manual page and the reference of the interface, into build/manual"
	@echo "make test-docs  runs the commands of README and GUIDE as they are written, minutes"
	@echo "make fuzz     the fuzz targets, a fixed number of inputs each"
	@echo "make ptx      the PTX of the GPU's kernels anew, with nvcc"
	@echo "make wheel    the Python package as a wheel, into build/wheels"
	@echo "make test-wheel  that wheel in clean environments of each Python from 3.11 on that is here"
	@echo "make deb      Debian packages of the library, its headers and the command, into build/deb"
	@echo "make install  into PREFIX ($(PREFIX))"
	@echo "make clean    removes build/"
	@echo "V=1 shows all output; TESTS='unit/|install/' runs those tests alone"

setup:
	@tools/bootstrap.sh $(NEEDS)

needs-wheel:
	@tools/bootstrap.sh wheel

configure: setup
	@$(STEP)/configure.log "Configuring" $(CMAKE) --preset release

# Without root the library and the command are built where what they need is there.
build: NEEDS := build
build: configure
	@$(STEP)/build.log "Building the library and the command" $(CMAKE) --build --preset release \
		--target kvterrace_static kvterrace_shared kvterrace_command kvterrace_python

lab: build
	@$(STEP)/build-lab.log "Building kvlab" $(CMAKE) --build --preset release --target kvlab

demo: build
	@tools/demo.sh $(BUILD)

test: configure
	@$(STEP)/build-all.log "Building the library, the command and the tests" \
		$(CMAKE) --build --preset release
	@ctest --preset release $(if $(TESTS),-R '$(TESTS)'); code=$$?; tests/skipped.sh $(BUILD); \
		exit $$code

CYCLES ?= 1000
SEED ?= 1
SECONDS ?= 1800
CALLS_SECONDS ?= 600
PYTHON_SECONDS ?= 300

torture: configure
	@$(STEP)/build-all.log "Building the library, the command and the tests" \
		$(CMAKE) --build --preset release
	@tests/torture/run_torture.sh $(BUILD) $(CYCLES) $(SEED)

soak: configure
	@$(STEP)/build-soak.log "Building the soak test" $(CMAKE) --build --preset release \
		--target torture_store_soak
	@cd $(BUILD) && ./torture_store_soak --seconds $(SECONDS) --seed $(SEED)

soak-calls: configure
	@$(STEP)/build-soak.log "Building the soak test of the calls" $(CMAKE) --build \
		--preset release --target torture_store_calls
	@cd $(BUILD) && ./torture_store_calls --seconds $(CALLS_SECONDS) --seed $(SEED)

soak-python: configure
	@$(STEP)/build-python.log "Building the Python package" $(CMAKE) --build --preset release \
		--target kvterrace_python
	@python/tests/soak.sh $(BUILD) none $(PYTHON_SECONDS) $(SEED)

# The same under a sanitizer: soak-python-asan, soak-python-tsan.
soak-python-asan soak-python-tsan: soak-python-%:
	@$(CMAKE) --preset $* > /dev/null
	@$(STEP)/build-python-$*.log "Building the Python package ($*)" $(CMAKE) --build --preset $* \
		--target kvterrace_python
	@python/tests/soak.sh $(BUILD)/$* $(if $(filter asan,$*),address,thread) $(PYTHON_SECONDS) \
		$(SEED)

check:
	@.ci/run

test-docs: lab
	@$(STEP)/build-drives.log "Building the emulated drive" $(CMAKE) --build --preset release \
		--target emulated_drive
	@tests/docs.sh $(BUILD)

# ENGINES=vllm runs the tests of one engine alone.
ENGINES ?=

test-engines: needs-wheel build
	@python3 python/tests/engines/run.py $(BUILD) $(ENGINES)

lint: build
	@tools/bootstrap.sh lint
	@python3 tests/lint.py --build $(BUILD)

format:
	@tools/bootstrap.sh lint
	@git ls-files '*.c' '*.h' '*.cu' | xargs clang-format -i

ptx:
	@python3 tools/make_ptx.py

bench: lab
	@$(BUILD)/kvlab stripe

# SmolLM2's folder and its texts (docs/REFERENCE_MODEL.md); without them the reference model alone.
MODEL ?=
TEXTS ?=
JSON ?=

bench-codecs: lab
	@python3 lab/bench_codecs.py $(BUILD) $(if $(MODEL),--model $(call shell_word,$(MODEL))) \
		$(if $(TEXTS),--texts $(call shell_word,$(TEXTS))) $(if $(JSON),--json) $(if $(QUICK),--quick)

test-nvme: configure
	@$(STEP)/build-nvme.log "Building the nvme tests" $(CMAKE) --build --preset release \
		--target conform_tiers_device nvme_drives
	@tests/nvme/run_machine.sh $(BUILD)

# What the tests of a GPU and its bundle consist of.
GPU_PROGRAMS := kvlab conform_codecs_all conform_tiers_device test_bench_gpu

test-gpu: configure
	@$(STEP)/build-gpu.log "Building the tests of a GPU" $(CMAKE) --build --preset release \
		--target $(GPU_PROGRAMS)
	@tests/gpu.sh $(abspath $(BUILD))

gpu-bundle: configure
	@$(STEP)/build-gpu.log "Building the tests of a GPU" $(CMAKE) --build --preset release \
		--target $(GPU_PROGRAMS)
	@tools/gpu_bundle.sh $(BUILD) $(BUILD)/kvterrace-gpu

asan tsan: setup
	@$(CMAKE) --workflow --preset $@

fuzz:
	@tools/bootstrap.sh fuzz
	@$(CMAKE) --workflow --preset $@

docs: build
	@$(STEP)/manual.log "Writing the manual page and the reference" $(CMAKE) --build \
		--preset release --target kvterrace_manual

wheel: needs-wheel build
	@$(STEP)/wheel.log "Making a wheel of the Python package" tools/make_wheel.sh $(BUILD)

# The wheel in clean environments of each Python from 3.11 on that is here.
test-wheel: wheel
	@tools/check_wheel.sh $(BUILD)

deb:
	@tools/bootstrap.sh deb
	@$(STEP)/deb.log "Making Debian packages" tools/make_deb.sh $(BUILD)
	@ls $(BUILD)/deb/*.deb

install: docs
	@$(STEP)/install.log "Installing into $(PREFIX)" $(CMAKE) --install $(BUILD) \
		--prefix $(call shell_word,$(PREFIX))
	@[ "$$(id -u)" -ne 0 ] || [ -n "$(DESTDIR)" ] || ldconfig || :

clean:
	@rm -rf $(BUILD)
