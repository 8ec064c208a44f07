# The ways into the project. Each target installs what is missing, builds what it needs and runs; the work is in scripts/.
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory
.PHONY: build cuda install demo test test-all test-threads bench format lint clean help

build: ## build build/release/glimpse
	@scripts/build release glimpse

cuda: ## build/cuda: the program for GPUs too, the tests and benchmarks of that
	@scripts/build cuda glimpse kernels_cuda_test engine_cuda_test server_cuda_test calibrate_cuda_test cuda_attention_bench \
		cuda_product_bench cuda_step_bench

install: ## install the program and the library to PREFIX (default /usr/local), below DESTDIR
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

demo: build ## calibrate a small model, ask for a number in a document: dense, by a window, sparse
	@scripts/demo

test: ## release build and all tests; with CI=true the same as test-all
	@scripts/test

test-all: ## format, sanitizers, fuzzing, then all tests
	@scripts/test --all

test-threads: ## the tests with threads under ThreadSanitizer, ggml included
	@scripts/test --threads

bench: ## measure the attention kernels, and a model against llama.cpp
	@scripts/bench

format: ## format the C++ sources in place
	@scripts/format

lint: ## check the format and run clang-tidy
	@scripts/format --check
	@scripts/lint

clean: ## remove all that was built here (dependencies and models stay cached)
	@rm -rf build

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
