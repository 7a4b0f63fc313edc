# The front door: `make help` lists what there is. CMake presets do the work (CMakePresets.json).

PROMPT ?= What is 347 + 85?
MODEL ?= models/nano
MAX_TOKENS ?= 256
FUZZ_SECONDS ?= 60
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

# Passed to the shell as variables, so that a prompt may hold quotes.
export PROMPT MODEL MAX_TOKENS
# Cached objects are found again from a checkout in another folder.
export CCACHE_BASEDIR = $(CURDIR)
export CCACHE_NOHASHDIR = 1

PACKAGES = tools/packages
SETUP_BUILD = tools/bootstrap.sh $(PACKAGES)-build.txt
SETUP_TEST = $(SETUP_BUILD) $(PACKAGES)-test.txt
SETUP_DEV = $(SETUP_TEST) $(PACKAGES)-dev.txt
SOURCES = git ls-files -co --exclude-standard -- '*.cc' '*.h'

.DEFAULT_GOAL := help
.PHONY: help setup build run test asan tsan tidy fuzz style format check-format install clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  make run PROMPT="Sort these words: sun moon star" MODEL=models/nano MAX_TOKENS=256'
	@echo '  make fuzz FUZZ_SECONDS=600          make install PREFIX=/usr/local DESTDIR='

setup:  ## Install the Debian packages that building needs (root or sudo, only if any is missing)
	@$(SETUP_BUILD)

# The first configuration here leaves the tests out, so that users need no test packages; `make
# test` turns them on in the same folder and shares the objects.
build: setup  ## Build build/release/k3
	@cmake --preset release $(if $(wildcard build/release/CMakeCache.txt),,-DK3_BUILD_TESTS=OFF) \
	  >/dev/null
	cmake --build --preset release -j $(JOBS) --target k3

run: build  ## Let the small model in models/ answer: PROMPT="..."
	@build/release/k3 run "$$MODEL" "$$PROMPT" --chat --thinking show --max-tokens "$$MAX_TOKENS"

test:  ## Build and run the whole test suite
	@$(SETUP_TEST)
	@cmake --preset release -DK3_BUILD_TESTS=ON >/dev/null
	cmake --build --preset release -j $(JOBS)
	ctest --preset release -j $(JOBS)

asan:  ## Run the tests under AddressSanitizer and UBSan
	@$(SETUP_DEV)
	@cmake --preset asan >/dev/null
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j $(JOBS)

tsan:  ## Run the tests under ThreadSanitizer
	@$(SETUP_DEV)
	@cmake --preset tsan >/dev/null
	cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -j $(JOBS)

tidy:  ## Run clang-tidy over every file and compile every header alone
	@$(SETUP_DEV)
	@cmake --preset tidy >/dev/null
	cmake --build --preset tidy -j $(JOBS) -- -k 0
	cmake --build --preset tidy -j $(JOBS) --target all_verify_interface_header_sets -- -k 0

fuzz:  ## Run each fuzzer for FUZZ_SECONDS; the corpus grows in build/fuzz/corpus
	@$(SETUP_DEV)
	@cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz -j $(JOBS)
	tools/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

style:  ## Check the rules of CONTRIBUTING.md that a script can count
	@python3 tests/style/style_check.py .

format:  ## Lay out every C++ file with clang-format
	@$(SETUP_DEV)
	$(SOURCES) | xargs -r clang-format-19 -i

check-format:  ## Fail if `make format` would change a file
	@$(SETUP_DEV)
	@python3 tests/style/format_check.py .

install:  ## Copy the binary to $(DESTDIR)$(PREFIX)/bin
	@test -x build/release/k3 || $(MAKE) build
	install -D -m 755 build/release/k3 "$(DESTDIR)$(PREFIX)/bin/k3"

clean:  ## Remove everything that was built
	rm -rf build
