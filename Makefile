# SPDX-License-Identifier: GPL-2.0
# Entry point; see README.md. "make help" lists the targets.

BASE ?= 6.12
export BASE KSRC MINUTES SEED MODE CONFIG

help: ## Show this
	@echo 'Targets (variables: BASE=$(BASE), KSRC=/path/to/a/kernel/tree):'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

run: ## Boot the unpatched and the patched kernel in QEMU, measure, print a table
	@scripts/run

test: ## Run all tests in emulators; the last line counts them
	@scripts/test

test-matrix: ## All tests on all generations of FPU; a table (an hour or two)
	@scripts/matrix

examples: ## Run the examples of the Documentation pages, as written, on the booted kernel
	@scripts/prepare debug
	@scripts/examples

bench: ## Every figure that README and Documentation quote: instructions, events, size, model
	@scripts/bench

report: ## Pictures of these, in build/report: PNGs, and one page with all
	@scripts/report

lab: ## The rules on made-up patterns of FPU use, and against an adversary: cycles by a model
	@scripts/lab

lab-test: ## Tests of the laboratory and of the rules, in user space
	@scripts/lab-test

compare: ## The kernel's own x86, FPU and KVM selftests, unpatched and in each mode, side by side
	@scripts/compare

deb: ## Debian packages (CONFIG=cloud-amd64, amd64 or a file), tested on a Debian system (hours)
	@scripts/deb

check: ## What a maintainer runs before taking a series: checkpatch, sparse, clang, ...
	@scripts/check

bisect-check: ## Does each commit build without a warning, off and on, and boot?
	@scripts/bisect-check

bases: ## Patches, machines, check and bisect-check of all bases, in a table (a night)
	@scripts/bases

duplication: ## How much of the edits of kernel files do the bases share?
	@scripts/duplication

soak: ## Random tests for MINUTES=10; SEED=n replays a run, MODE=lazy is another mode
	@scripts/soak

mutate: ## Drop one hook after the other: does a test notice? (hours)
	@scripts/mutate

patches: ## Make patches/$(BASE) from the sources
	@scripts/mkpatches

check-patches: ## Is patches/$(BASE) what the sources give?
	@scripts/check-patches

apply: ## Get the base and apply the series to it, in build/
	@scripts/packages
	@scripts/apply

edit: ## Make a git tree with the series applied, to work in
	@scripts/edit

absorb: ## Bring the commits made there back into the sources
	@scripts/absorb

clean: ## Remove what was built, but not what was downloaded
	@find build -mindepth 1 -maxdepth 1 ! -name cache -exec rm -rf {} +

.PHONY: help run test test-matrix examples bench report lab lab-test compare deb check bisect-check bases duplication soak mutate patches check-patches apply edit absorb clean
.NOTPARALLEL:
