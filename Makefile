# The same targets serve people and CI; `make` lists them.

.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# sudo's PATH lacks the place where Go's own archive unpacks to, and a service
# may have no HOME, without which Go has no cache.
export PATH := $(PATH):/usr/local/go/bin
export HOME ?= $(shell getent passwd "$$(id -u)" | cut -d: -f6)
export GOTOOLCHAIN ?= auto

VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
MODULE := github.com/direct-oci/engine
GO_BUILD := go build -buildvcs=false -trimpath
STAMP := -X $(MODULE)/engine.Version=$(VERSION)
STATIC_CGO := -linkmode external -extldflags "-static -Wl,--build-id=none"

# The version of gVisor's commit pinned in integration/tools/runsc/go.mod.
RUNSC_VERSION = $(shell sed -n 's/.*gvisor.dev\/gvisor v[0-9.]*-\([0-9]\{8\}\)[0-9]*-\([0-9a-f]*\).*/release-\1-\2/p' integration/tools/runsc/go.mod)

# Where the tests meet the kernel: these run in the test machine.
VM_TESTS ?= ./cgroups ./rootfs ./integration ./integration/guest ./integration/network ./service
# More of them, in a second machine beside the first: each keeps one processor busy.
VM_TESTS_BESIDE ?= ./integration/testenv ./integration/sessions ./integration/runner ./integration/faults ./integration/service
# What they need beside the programs and their own testdata.
VM_ADD := -add clients/typescript:clients/typescript
# Proofs of the engine's crashes that do not run in that machine: those that cut its
# power, that are many, that need a newer kernel.
FAULTS_HERE := ^(TestPowerCut|TestSoak|TestNoProgramEndsWithoutItsMonitor)$$
VM := build/vm/vm
LINT := build/lint

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: setup
setup: ## install the Debian packages and the Go that are missing (as root)
	@hack/setup.sh

.PHONY: build
build: bin/engine bin/engine-runner bin/engine-image bin/engine-monitor bin/engine-init bin/engine-guest bin/engine-launch ## build the engine's static binaries into bin/

# Go decides itself what is out of date.
.PHONY: bin/engine bin/engine-runner bin/engine-image bin/engine-monitor bin/engine-init bin/engine-guest bin/engine-launch
bin/engine: | setup
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w $(STAMP)' -o $@ ./cmd/engine

bin/engine-runner: | setup
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w $(STAMP)' -o $@ ./cmd/engine-runner

bin/engine-image: | setup
	CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w' -o $@ ./cmd/engine-image

# No tag for libseccomp: the filter is compiled beforehand and attached by engine-init.
bin/engine-monitor: | setup
	@CGO_ENABLED=1 $(GO_BUILD) -tags 'netgo osusergo' -ldflags '-s -w $(STAMP) $(STATIC_CGO)' -o $@ ./cmd/engine-monitor

# Programs that can be killed at any step by name: for the fault tests, which put them
# in the place of the others. Nothing of it is in those.
.PHONY: faults
faults: build tools ## build the programs of the fault tests into bin/
	CGO_ENABLED=0 $(GO_BUILD) -tags failpoint -ldflags '-s -w $(STAMP)' -o bin/engine-failpoint ./cmd/engine
	CGO_ENABLED=1 $(GO_BUILD) -tags 'failpoint netgo osusergo' -ldflags '-s -w $(STAMP) $(STATIC_CGO)' -o bin/engine-monitor-failpoint ./cmd/engine-monitor
	CGO_ENABLED=0 $(GO_BUILD) -tags failpoint -ldflags '-s -w $(STAMP)' -o bin/session-failpoint ./integration/faults/cmd/session
	CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w' -o bin/nth ./integration/faults/cmd/nth

bin/engine-init bin/engine-guest bin/engine-launch: | setup
	@$(MAKE) -s --no-print-directory -C cmd/$(@F) OUT='$(CURDIR)/$@'

.PHONY: install
install: build ## install the programs and, below /etc, systemd's units and a first config: DESTDIR, PREFIX
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' hack/install.sh bin

# What an upgrade in place brings, for the tests under systemd.
.PHONY: next
next: build
	@mkdir -p build/next
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -X $(MODULE)/engine.Version=next' -o build/next/engine ./cmd/engine
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -X $(MODULE)/engine.Version=next' -o build/next/engine-runner ./cmd/engine-runner
	@CGO_ENABLED=1 $(GO_BUILD) -tags 'netgo osusergo' -ldflags '-s -w -X $(MODULE)/engine.Version=next $(STATIC_CGO)' -o build/next/engine-monitor ./cmd/engine-monitor
	@cp -p bin/engine-{image,init,guest,launch} build/next/

.PHONY: tools
tools: bin/runc bin/runsc ## build the pinned runc and runsc into bin/

bin/runc: integration/tools/runc/go.mod integration/tools/runc/go.sum | setup
	@echo "building runc" >&2
	@cd $(<D) && CGO_ENABLED=1 $(GO_BUILD) -tags 'seccomp netgo osusergo urfave_cli_no_docs' \
		-ldflags '-s -w $(STATIC_CGO)' -o '$(CURDIR)/$@' github.com/opencontainers/runc

bin/runsc: integration/tools/runsc/go.mod integration/tools/runsc/go.sum | setup
	@echo "building runsc: this takes minutes, once" >&2
	@cd $(<D) && CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -X gvisor.dev/gvisor/runsc/version.version=$(RUNSC_VERSION)' \
		-o '$(CURDIR)/$@' gvisor.dev/gvisor/runsc

# What the tests run inside sandboxes.
bin/probe: $(wildcard integration/probe/*.[ch]) | setup
	musl-gcc -std=c11 -O2 -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror -static -s -o $@ $(filter %.c,$^)

.PHONY: bin/netprobe
bin/netprobe: | setup
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w' -o $@ ./integration/network/cmd/netprobe

.PHONY: $(VM)
$(VM): | setup
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w' -o build/vm/guest ./integration/vm/cmd/guest
	@CGO_ENABLED=0 $(GO_BUILD) -o $@ ./integration/vm/cmd/vm

.PHONY: vm
vm: export VM_CMD = $(value CMD)
# make exits 2 when the command fails, whatever its status; $(VM) run passes it on.
vm: build tools $(VM) ## run a command as root in the test machine, bin/ on PATH: make vm CMD='runc --version'
	@[ -n "$$VM_CMD" ] || { echo "usage: make vm CMD='SHELL COMMAND'" >&2; exit 2; }
	@$(VM) run $(VMFLAGS) -- "$$VM_CMD"

.PHONY: test
test: test-unit test-vm ## run all tests

.PHONY: test-unit
test-unit: build ## run the tests that need no machine of their own
	go test $$(go list ./... | grep -v '/integration')

# A third machine, once the first is done: the engine as a service, under systemd.
VM_SYSTEMD := $(VM) test -timeout 10m -memory 3072 -env ENGINE_SYSTEMD=/debian -disk build/vm/systemd.ext4:/debian \
	-add hack/install.sh:hack/install.sh -add systemd:systemd -add build/next:build/next

.PHONY: test-vm
test-vm: build faults next build/vm/systemd.ext4 bin/probe bin/netprobe $(VM) ## run the tests of the binaries and of the kernel's side, in the test machine
	go test ./integration/vm/...
	ENGINE_FAULTS=sample go test -count=1 -run '$(FAULTS_HERE)' ./integration/faults
	@mkdir -p build/test
	@$(VM) test -timeout 30m -env ENGINE_FAULTS=sample $(VM_ADD) $(VMFLAGS) $(VM_TESTS_BESIDE) >build/test/beside.log 2>&1 & beside=$$!; \
	first=0; $(VM) test -timeout 30m $(VM_ADD) $(VMFLAGS) $(VM_TESTS) || first=$$?; \
	third=0; $(VM_SYSTEMD) $(VMFLAGS) ./integration/systemd || third=$$?; \
	second=0; wait $$beside || second=$$?; cat build/test/beside.log; exit $$((first | second | third))

.PHONY: test-host
test-host: build faults bin/probe bin/netprobe ## run the same tests on this host: as root, pure cgroup v2
	ENGINE_TEST_HOST=1 ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -p 1 $(VM_TESTS) $(VM_TESTS_BESIDE)

# RUN='TestSoak' takes one proof out of all; ENGINE_FAULTS=sample takes a part of each.
.PHONY: test-faults
test-faults: export ENGINE_FAULTS ?= all
test-faults: build faults $(VM) ## kill, fail and cut everything, for hours: as root, with a cgroup2 mount; RUN=TestSoak for one proof
	ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -timeout 0 -v -run '$(RUN)' ./integration/faults

# RUN='TestTuples' takes one proof out of all.
.PHONY: test-network
test-network: build tools bin/netprobe ## prove what runs may reach, natively: as root, with a cgroup2 mount; RUN=TestTuples for one proof
	hack/clients.sh
	ENGINE_NETWORK=all ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -timeout 1h -v -run '$(RUN)' ./integration/network

.PHONY: test-sessions
test-sessions: build tools ## prove what long-lived sandboxes promise, natively: as root, with a cgroup2 mount; RUN=TestPause for one proof
	ENGINE_SESSIONS=1 ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -timeout 30m -v -run '$(RUN)' ./integration/sessions ./service

.PHONY: build/vm/systemd.ext4
build/vm/systemd.ext4: | setup
	@mkdir -p $(@D)
	@hack/systemd.sh $@

# On a host whose controllers belong to version 1 of cgroups it proves all but limits;
# make test-vm has those, in a short form of the rest. RUN='TestDrain' takes one proof out of all.
.PHONY: test-systemd
test-systemd: build tools next build/vm/systemd.ext4 ## prove what the service promises under a real systemd: as root, with a cgroup2 mount
	ENGINE_SYSTEMD='$(CURDIR)/build/vm/systemd.ext4' ENGINE_SYSTEMD_SCOPE=all ENGINE_BIN='$(CURDIR)/bin' \
		go test -count=1 -timeout 1h -v -run '$(RUN)' ./integration/systemd

# SOAK=1000 takes so many cycles instead.
.PHONY: test-soak-service
test-soak-service: export ENGINE_SOAK := $(or $(SOAK),24h)
test-soak-service: build ## create, use and tear down sandboxes while everything is killed: as root, with a cgroup2 mount; SOAK=24h or SOAK=1000
	ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -timeout 0 -v -run 'TestSoak$$' ./integration/service

.PHONY: bench-network
bench-network: build tools bin/netprobe ## measure the network's part of a start, and streams beside a plain veth
	ENGINE_NETWORK=bench ENGINE_BIN='$(CURDIR)/bin' go test -count=1 -timeout 1h -run '^$$' -bench . -benchtime 1x ./integration/network

.PHONY: bench
bench: build tools ## measure on this host, side by side with the bare runtimes
	@hack/bench.sh

.PHONY: demo
demo: build tools $(VM) ## set up, build, and run the example jobs under two runtimes
	@hack/demo.sh

.PHONY: images
images: | setup ## make the project's own images, as OCI layouts in build/images
	@images/build.sh

.PHONY: check
check: $(LINT)/gofumpt $(LINT)/staticcheck build ## format, vet, staticcheck, race tests, layout, scripts
	@unformatted=$$($(LINT)/gofumpt -l .) && [ -z "$$unformatted" ] || { echo "not formatted (gofumpt -w):" $$unformatted; exit 1; }
	go vet ./...
	$(LINT)/staticcheck ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint: not installed, left out"; fi
	@if command -v shellcheck >/dev/null; then shellcheck --severity=warning .ci/run hack/*.sh images/*.sh; else echo "shellcheck: not installed, left out"; fi
	go test -race $$(go list ./... | grep -v '/integration')

$(LINT)/%: integration/tools/lint/go.mod integration/tools/lint/go.sum | setup
	@go build -modfile integration/tools/lint/go.mod -o $@ "$$(go -C integration/tools/lint list tool | grep '/$*$$')"

.PHONY: clean
clean: ## remove everything that was built and cached here
	rm -rf bin build
