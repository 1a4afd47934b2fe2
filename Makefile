# nodekeep. `make` alone prints what there is.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

GO       ?= go
FUZZTIME ?= 20s
LINT     := bin/golangci-lint

# Packages whose tests start processes, mount or wait for the real clock; all
# others run in virtual time and bear many repeats.
REAL := . ./allocdir ./api/... ./bench/... ./cmd/... ./device/deviceplugin/... ./driver/driverplugin/... ./driver/exec/... ./driver/rawexec/... ./drivermanager ./examples/... \
        ./internal/account ./internal/cgroup/... ./internal/pluginproc ./logmon/... ./supervisor/...
PURE  = $(shell $(GO) list ./... | grep -vxF -f <($(GO) list $(REAL); $(GO) list ./internal/archtest))
# Tests on one goroutine that go the same way each time: once shows what fifty do.
ONCE := ^(TestExplore|TestBombs|TestRoundTripTexts|TestDamagedPages)$$

.PHONY: help build test test-long test-v2 check fmt-check tidy-check proto proto-check vet lint arch bench fuzz fmt clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the command and the small supervisor, into bin/
	$(GO) build ./...
	$(GO) build -o bin/nodekeep ./examples/agent
	$(GO) build -o bin/nodekeep-supervisor ./cmd/nodekeep-supervisor

test: ## every test once under the race detector, with real processes (best as root)
	$(GO) test -race -timeout 10m ./...
	NODEKEEP_LIVES=10000 $(GO) test -timeout 10m -run '^TestRandomLives$$' ./allocrunner

test-long: ## the same many times over, then each fuzz target for a minute; two hours on two cores
	NODEKEEP_LONG=1 $(GO) test -timeout 60m -run '^TestExplore$$' ./taskrunner ./allocrunner
	NODEKEEP_LONG=1 $(GO) test -race -timeout 60m . ./driver/... ./drivermanager ./examples/agent
	$(GO) test -race -count=50 -skip '$(ONCE)' -timeout 60m $(PURE)
	$(GO) test -race -count=10 -timeout 60m $(REAL)
	NODEKEEP_STORM=200 $(GO) test -race -timeout 30m -run '^TestStorm$$' ./examples/agent
	KILL_ROUNDS=100 $(GO) test -race -timeout 30m -run '^Test(SupervisorKilled|AgentDies)DuringStart$$' ./supervisor
	NODEKEEP_OLD=1 $(GO) test -timeout 10m -run '^TestOld(Agent|Supervisor)$$' ./supervisor
	$(MAKE) test-v2
	$(MAKE) fuzz FUZZTIME=1m

test-v2: ## the tests that use cgroups, on a virtual machine with cgroup v2 only (Debian, ten minutes at most)
	.ci/v2

check: fmt-check tidy-check proto-check vet lint arch ## format, vet for three systems, linter, structure

fmt-check:
	@bad=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l); \
	if [ -n "$$bad" ]; then echo "not formatted, run make fmt:"; echo "$$bad"; exit 1; fi

tidy-check:
	$(GO) mod tidy -diff

# Compiler and generators are pinned in a module of their own.
proto: ## the generated code of the plugin wire
	$(GO) run -C tools/protogen . ../..

proto-check:
	$(GO) run -C tools/protogen . -check ../..

vet:
	GOOS=linux   $(GO) vet ./...
	GOOS=windows $(GO) vet ./...
	GOOS=darwin  $(GO) vet ./...

lint: $(LINT)
	$(LINT) run ./...

# The linter is a module of its own, so that its dependencies never meet ours.
$(LINT): tools/golangci/go.mod
	$(GO) build -C tools/golangci -o $(CURDIR)/$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $(LINT)

arch:
	$(GO) test ./internal/archtest

bench: ## the figures of docs/benchmarks.md, each beside its physical limit
	$(GO) run ./bench
	$(GO) run -tags isolated ./bench -modes exec,exec-small
	$(GO) test -run '^$$' -bench '^BenchmarkStartTask$$' -benchtime 2s ./driver/driverplugin

fuzz: ## every fuzz target for FUZZTIME (20s)
	.ci/fuzz $(FUZZTIME)

fmt: ## gofmt everything
	git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -w

clean: ## remove bin/
	rm -rf bin
