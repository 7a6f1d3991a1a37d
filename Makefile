# Targets are for people and for CI alike; `make` lists them.

.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# sudo's PATH often lacks the place where Go's own archive unpacks to.
export PATH := $(PATH):/usr/local/go/bin

VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
GO_SOURCES := $(shell find . \( -path ./build -o -path ./bin -o -path ./.git \) -prune -o \( -name '*.go' -o -path '*/testdata/*' -type f -o -name 'go.mod' -o -name 'go.sum' \) -print 2>/dev/null)

VM := build/vm/vm

.PHONY: vm
vm: $(VM) ## run CMD as root in the test machine: make vm CMD='cat /proc/version'
	@$(VM) run $(VMFLAGS) -- "$$VM_CMD"
vm: export VM_CMD = $(value CMD)

$(VM): $(GO_SOURCES)
	@CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o build/vm/guest ./integration/vm/cmd/guest
	@CGO_ENABLED=0 go build -buildvcs=false -trimpath -o build/vm/vm ./integration/vm/cmd/vm
