# The menu. `make` lists it. Everything can also be run with cargo; see cargo xtask.

CARGO ?= cargo
LARDER := $(or $(CARGO_TARGET_DIR),target)/release/larder
# Mounting and shaping a link need root.
SUDO := $(shell [ "$$(id -u)" -eq 0 ] || echo sudo)

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench volumes tidy fmt build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what demo and test need (apt; root or sudo), and say what
	@xtask/setup

demo: setup build ## a share behind a 100 Mbit/s link, read cold and hot (root or sudo)
	$(SUDO) demo/run $(LARDER)

test: setup ## everything a change must pass: format, lints, tidy, all tests
	$(CARGO) xtask ci

bench: setup build ## five rounds of badros, fscache and basic5, then badros at 1 and 10 ms; a report (root or sudo)
	run=$$($(SUDO) $(LARDER) bench run badros fscache basic5 --single --size short --rounds 5 --minutes 7) && \
	$(SUDO) $(LARDER) bench run badros --single --size short --rounds 5 --minutes 9 --link rtt=1ms --link rtt=10ms --out "$$run" && \
	$(SUDO) $(LARDER) bench report "$$run"

volumes: setup build ## own servers beside nfs-ganesha, and 1 to 7 disks; a report (root or sudo)
	run=$$($(SUDO) $(LARDER) bench run snapdragon --size short --rounds 3 --minutes 40) && \
	$(SUDO) $(LARDER) bench run disks --size short --rounds 3 --minutes 5 --out "$$run" && \
	$(SUDO) $(LARDER) bench report "$$run"

tidy: ## the rules of the repository, without the tests
	$(CARGO) xtask tidy

fmt: ## format all code
	$(CARGO) fmt --all

build: ## the release binaries
	$(CARGO) build --release --locked --package larder --package larder-helper

clean: ## remove everything that was built
	$(CARGO) clean
