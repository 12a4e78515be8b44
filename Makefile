# Every target works on a machine with Go 1.26; make test says what else it needs.
# .ci/run runs them all.
GO ?= go
TOOL = $(GO) tool -modfile=tools.mod
PKGS ?= ./...
# Both are about the whole machine: tests of other packages at the same time spoil them.
TESTFLAGS ?= -count=1
VMPKGS ?= ./internal/linux/... ./backend/native/... ./lab
VMFLAGS ?= -timeout 25m -log .cache/vm.log

.PHONY: all build test test-short test-user test-vm lint generate-check keeper-check cross lab lab-user bench-smoke tools fmt clean

all: build test lint

build:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/belljar ./cmd/belljar

# Packages run one after the other: many of them look at what the machine has of
# processes, mounts and cgroups before and after.
test: tools
	$(GO) test -p 1 $(TESTFLAGS) -timeout 15m $(PKGS)

test-short: tools
	$(GO) test -p 1 -short $(TESTFLAGS) -timeout 10m $(PKGS)

# The same tests as an ordinary user, when this is root.
test-user: tools
	./.ci/as-user $(GO) test -p 1 $(TESTFLAGS) -timeout 15m $(PKGS)

# A plain cgroup v2 machine with another kernel, in software: slow.
test-vm: tools
	$(GO) run ./internal/vmlane $(VMFLAGS) -- $(VMPKGS)

# What people wrote: generated code is as its generator writes it.
OWN = git ls-files '*.go' ':!:*.pb.go' ':!:*.connect.go'

lint:
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	@out="$$($(TOOL) gofumpt -l $$($(OWN)))"; if [ -n "$$out" ]; then echo "gofumpt would change:"; echo "$$out"; exit 1; fi

fmt:
	$(TOOL) gofumpt -w $$($(OWN))

# What is generated is as committed.
generate-check: tools
	$(GO) run ./internal/gen
	$(TOOL) buf lint
	$(TOOL) buf generate
	git diff --exit-code -- spec docs api

# The keeper in the repository is what its source gives with the compiler that it names.
keeper-check: tools
	./.ci/keeper-check

cross:
	set -e; for t in darwin/arm64 windows/amd64 linux/arm64; do \
		echo "$$t"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) vet ./...; \
		for p in $$(GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
			GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) test -c -o /dev/null $$p; \
		done; \
	done

lab: build
	./bin/belljar lab run all

lab-user: build
	./.ci/as-user ./bin/belljar lab run all

bench-smoke: build
	./bin/belljar bench --quick

# Installs on Debian as root what the tests use, or names it.
tools:
	@./.ci/tools

clean:
	rm -rf bin dist
