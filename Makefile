# SPDX-License-Identifier: GPL-2.0
# Entry point; see README.md. "make help" lists the targets.

BASE ?= 6.12
export BASE KSRC

help: ## Show this
	@echo 'Targets (variables: BASE=$(BASE), KSRC=/path/to/a/kernel/tree):'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

run: ## Boot the unpatched and the patched kernel in QEMU, measure, print a table
	@scripts/run

test: ## Run all tests in emulators; the last line counts them
	@scripts/test

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

.PHONY: help run test mutate patches check-patches apply edit absorb clean
.NOTPARALLEL:
