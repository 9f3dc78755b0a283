# `make` or `make help` lists the targets. Each target installs and names the packages that it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

CARGO ?= cargo
NEED := scripts/need.sh
# Duration of `soak`.
SOAK ?= 1h
# Duration of `bench-idle`.
IDLE ?= 10m
# Number of kubelet deaths of `test-handover`.
DEATHS ?= 180
# Versions for `test-containerd` and `test-kubernetes`; other targets use them only if they are set.
CONTAINERD_VERSION ?= 2.4
KUBERNETES_VERSION ?= 1.30

# Target of Rust for `dist`. Another one than this machine's needs `rustup target add TARGET` and its C compiler.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= aarch64-linux-gnu-gcc
HOST := $(shell rustc -vV | sed -n 's/^host: //p')
TARGET ?= $(HOST)

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

# One set of features and one profile for all tests and the demo: everything is compiled once.
TESTED := --locked --workspace --features system-tests
RUN_TESTS := scripts/cargo-test.sh $(TESTED)
# By name: tests with `cluster` need a control plane, those with `node` a node; node_crash kills the agent at every step;
# node_traces needs containerd 2.
PROGRAMS := $(basename $(notdir $(wildcard tests/*.rs tests/testbed/tests/*.rs))) $(foreach it,$(wildcard tests/*/main.rs tests/testbed/tests/*/main.rs),$(notdir $(patsubst %/main.rs,%,$(it))))
WITH_NODE := $(filter-out node_crash node_traces,$(filter node%,$(PROGRAMS)))
ON_CLUSTER := $(foreach it,$(PROGRAMS),$(if $(findstring cluster,$(it)),$(it)))
WITHOUT_KUBELET := $(filter-out cluster_handover cluster_kubelet,$(ON_CLUSTER))
IN_MEMORY := $(foreach it,$(PROGRAMS),$(if $(filter $(ON_CLUSTER) node%,$(it)),,$(it)))
# Tests that need systemd as PID 1: `make test-guest` starts such a guest.
NOT_IN_GUEST := --skip guest::

# Tests of mem_agent whose course depends on the runtime's manners. `make test OF_MANNERS=` runs all of them as CRI-O, too.
OF_MANNERS ?= stop cri_o grace hooks runtime_state restart in_progress containers exit_status handover

# Needed packages, as PACKAGE=PROOF (scripts/need.sh).
BUILD_PACKAGES := protobuf-compiler=protoc gcc=cc libc6-dev=/usr/include/stdio.h
DEB_PACKAGES := debhelper=dh_installsystemd binutils=readelf
RPM_PACKAGES := rpm=rpmbuild
# For tests of the packages.
PACKAGE_PACKAGES := $(DEB_PACKAGES) $(RPM_PACKAGES) lintian=lintian busybox-static
NODE_PACKAGES := containerd=containerd runc=runc containernetworking-plugins busybox-static iproute2=ip util-linux=nsenter btrfs-progs=mkfs.btrfs
KIND_PACKAGES := $(NODE_PACKAGES) debootstrap=debootstrap iptables=iptables libdevmapper1.02.1
# Only promtool and prometheus are used, and only in tests.
METRICS_PACKAGES := prometheus=promtool
GUEST_PACKAGES := qemu-system-x86=qemu-system-x86_64 debootstrap=debootstrap e2fsprogs=mkfs.ext4

.PHONY: help
help: ## List the targets
	@echo 'pod-teardown: tears Kubernetes pods down by the container runtime.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'All but build, packages, lint, soak, bench-gc and deny need root: they start their own containerd or virtual machine.'
	@echo 'Targets install missing packages with apt-get and name them.'

.PHONY: build
build: need-build ## Build the agent for use: target/release/pod-teardown
	$(CARGO) build --release --locked -p pod-teardown
	@! grep -q POD_TEARDOWN_CHECKPOINTS $(TARGET_DIR)/release/pod-teardown || \
		{ echo 'make: this binary has checkpoints for tests: build it without the feature system-tests' >&2; exit 1; }

.PHONY: deb
deb: need-deb build ## Build the Debian packages: target/dist/pod-teardown_VERSION_ARCH.deb
	PROGRAM=$(TARGET_DIR)/release/pod-teardown packaging/deb.sh

.PHONY: rpm
rpm: need-rpm build ## Build the RPM packages: target/dist/pod-teardown-VERSION-1.ARCH.rpm
	PROGRAM=$(TARGET_DIR)/release/pod-teardown packaging/rpm.sh

.PHONY: tarball
tarball: build ## Build the tarball with install.sh, for systems without packages: target/dist/pod-teardown-VERSION-ARCH.tar.gz
	PROGRAM=$(TARGET_DIR)/release/pod-teardown packaging/tarball.sh

.PHONY: image
image: need-image build ## Build the image of the installing DaemonSet: target/dist/pod-teardown-installer-VERSION-ARCH.tar, for docker load
	PROGRAM=$(TARGET_DIR)/release/pod-teardown packaging/image.sh

.PHONY: dist
dist: need-deb need-rpm need-image build ## Build all that a release has, with SHA256SUMS, for TARGET=x86_64-unknown-linux-gnu: target/dist/VERSION
	@[ $(TARGET) = $(HOST) ] || $(CARGO) build --release --locked -p pod-teardown --target $(TARGET)
	packaging/dist.sh $(TARGET)

.PHONY: demo
demo: need-root need-build need-node ## Delete six pods and show how each is torn down
	@# The examples need dev-dependencies, so that all targets share one set of features.
	$(CARGO) build $(TESTED) --bins --examples
	$(TARGET_DIR)/debug/demo

.PHONY: bench
bench: need-root need-build need-node ## Measure the agent against direct CRI calls, with 1, 50 and 110 pods, with 1,000 on a scripted runtime, its memory with large pods and with thousands of terminal ones, its removal of volumes against plain system calls, and how soon it sees a kubelet start
	$(CARGO) build --release --locked --workspace --bins
	$(TARGET_DIR)/release/bench pods
	$(CARGO) bench --locked --bench many --bench memory --bench volumes --bench kubelet_start

.PHONY: bench-kubelet
bench-kubelet: need-root need-build need-node ## Measure the agent, direct CRI calls and a kubelet with 110 pods that a real kubelet has made, on CONTAINERD_VERSION=2.4 (needs the control plane)
	tests/testbed/control-plane/build.sh
	tests/testbed/control-plane/build.sh kubelet
	$(CARGO) build --release --locked --workspace --bins
	CONTAINERD_VERSION=$(CONTAINERD_VERSION) $(TARGET_DIR)/release/bench pods --kubelet --against-kubelet

.PHONY: bench-gc
bench-gc: need-build ## Measure the collector against direct deletion and kube-controller-manager (needs the control plane)
	tests/testbed/control-plane/build.sh
	tests/testbed/control-plane/build.sh kube-controller-manager
	$(CARGO) build --release --locked --workspace --bins
	$(TARGET_DIR)/release/bench gc

.PHONY: bench-idle
bench-idle: need-root need-node build ## Measure the cost of a standby agent beside a real kubelet with 110 pods, for IDLE=10m (needs the control plane)
	tests/testbed/control-plane/build.sh
	tests/testbed/control-plane/build.sh kubelet
	$(CARGO) build --locked -p testbed --bin bench
	$(TARGET_DIR)/debug/bench idle --agent $(TARGET_DIR)/release/pod-teardown --for $(IDLE)

.PHONY: test
test: need-root need-build need-node need-metrics need-packages tests-built ## Every test that needs no control plane, real pods on a private containerd included
	scripts/side-by-side.sh test-memory test-node

.PHONY: tests-built
tests-built: need-build
	$(CARGO) test $(TESTED) --no-run

.PHONY: test-memory
test-memory: need-build need-metrics ## The part of `make test` in memory
	@# It computes, and does not wait: what runs beside it goes first.
	SIM_RUNS=1500 nice $(RUN_TESTS) --lib --bins $(addprefix --test ,$(IN_MEMORY))
	RUNTIME_MANNERS=cri-o nice $(RUN_TESTS) --test mem_agent -- $(OF_MANNERS)

.PHONY: test-node
test-node: need-root need-build need-node need-packages ## The part of `make test` with real pods
	$(RUN_TESTS) $(addprefix --test ,$(WITH_NODE)) -- $(NOT_IN_GUEST)
	$(RUN_TESTS) --test node_crash -- --nocapture

.PHONY: crash-matrix
crash-matrix: need-root need-build need-node ## Every fault at every step of a teardown
	CRASH_MATRIX=all $(RUN_TESTS) --test node_crash -- --nocapture

.PHONY: soak
soak: need-build ## Random pods, faults and crashes in memory for SOAK=1h, or until an invariant breaks
	SOAK=$(SOAK) $(CARGO) test --locked --profile sim --test sim no_plan_breaks_an_invariant -- --nocapture

.PHONY: test-cluster cluster-handover cluster-kubelet cluster-others
test-cluster: tests-built built-for-cluster ## Teardown, collector and API contract on a real control plane, and beside a real kubelet (built once: Go, 7 minutes)
	scripts/side-by-side.sh cluster-handover 'cluster-kubelet cluster-others'

cluster-handover: need-root need-build need-node built-for-cluster
	$(RUN_TESTS) --test cluster_handover

# In a PID namespace of their own, agents do not search the processes of other tests. The kernel reports process events only
# outside, where cluster_handover needs them.
ALONE := unshare --pid --fork --kill-child --mount-proc --propagation unchanged

cluster-kubelet: need-root need-build need-node built-for-cluster
	$(ALONE) $(RUN_TESTS) --test cluster_kubelet

cluster-others: need-root need-build need-node built-for-cluster
	$(ALONE) $(RUN_TESTS) $(addprefix --test ,$(WITHOUT_KUBELET))

.PHONY: built-for-cluster
built-for-cluster:
	tests/testbed/control-plane/build.sh
	tests/testbed/control-plane/build.sh kube-controller-manager
	tests/testbed/control-plane/build.sh kubelet
	tests/testbed/go-program.sh crictl

# Tests of features that releases before 1.34 lack, see docs/reference/versions.md.
OF_NEWER_KUBERNETES := $(if $(filter 1.30,$(KUBERNETES_VERSION)),--skip csi::volume_may_be_attached)

.PHONY: test-containerd
test-containerd: need-root need-build need-node ## Teardowns, with and beside a real kubelet, on CONTAINERD_VERSION=2.4 (built once: Go, a minute)
	CONTAINERD_VERSION=$(CONTAINERD_VERSION) $(RUN_TESTS) --test node_teardown --test cluster_teardown \
		--test cluster_kubelet --test cluster_handover --test node_crash --test node_traces -- --nocapture $(NOT_IN_GUEST)

.PHONY: test-kubernetes
test-kubernetes: need-root need-build need-node ## Teardown and collector on KUBERNETES_VERSION=1.30, the oldest, or 1.36 (built once: Go, 10 minutes)
	KUBERNETES_VERSION=$(KUBERNETES_VERSION) $(RUN_TESTS) --test cluster_teardown --test cluster_gc -- $(OF_NEWER_KUBERNETES)

.PHONY: test-handover
test-handover: need-root need-build need-node ## A real kubelet dies and returns DEATHS=180 times while pods are created and deleted, and 20 times with the default thresholds; another one starts 60 times and never works; an agent only observes 200 terminations (two hours)
	tests/testbed/control-plane/build.sh
	tests/testbed/control-plane/build.sh kubelet
	DEATHS=$(DEATHS) LOOPS=60 $(RUN_TESTS) --test cluster_handover -- --nocapture
	DEATHS=20 TAKE_OVER_AFTER=45s $(RUN_TESTS) --test cluster_handover never_both -- --nocapture
	ROUNDS=3 $(RUN_TESTS) --test cluster_kubelet only_observes -- --nocapture

.PHONY: test-guest
test-guest: need-root need-build need-guest need-deb ## Files, mounts, cgroups, teardowns and the Debian package in a guest with systemd and cgroup v2 alone (built once: Debian, a minute)
	tests/testbed/guest/test.sh

.PHONY: test-kind
test-kind: need-root need-build need-kind need-deb need-image ## The package and the installing DaemonSet on a kind cluster whose worker loses its kubelet (KIND_NODE_IMAGE=..., else built once: Debian and Go, 7 minutes)
	$(CARGO) build $(TESTED) --bins --examples
	tests/kind/test.sh $(TARGET_DIR)/debug/pod-teardown

.PHONY: lint
lint: need-build ## Formatting, clippy and the shell scripts
	@$(NEED) shellcheck=shellcheck
	$(CARGO) fmt --all -- --check
	@# In a directory of its own: else tests would wait for its lock.
	nice $(CARGO) clippy --target-dir $(TARGET_DIR)/lint --locked --workspace --all-targets --all-features -- -D warnings
	nice $(CARGO) clippy --target-dir $(TARGET_DIR)/lint --locked --no-default-features --lib --example embed -- -D warnings
	shellcheck -x $(SCRIPTS)

SCRIPTS := $(wildcard scripts/*.sh) $(wildcard packaging/*.sh packaging/*/*.sh packaging/debian/*.post*) $(wildcard deploy/*.sh) .ci/run tests/testbed/control-plane/build.sh tests/testbed/go-program.sh $(wildcard tests/testbed/guest/*.sh) \
	$(wildcard tests/testbed/kind/*.sh) tests/testbed/kind/node/usr/local/bin/entrypoint $(wildcard tests/kind/*.sh)

.PHONY: deny
deny: ## Licences, bans and advisories of the dependencies (needs cargo-deny)
	@command -v cargo-deny >/dev/null || { echo 'deny: first run: cargo install --locked cargo-deny' >&2; exit 1; }
	$(CARGO) deny check

# === requirements ===

.PHONY: need-root need-build need-node need-metrics need-guest need-kind need-deb need-rpm need-image need-packages
need-root:
	@[ "$$(id -u)" = 0 ] || { echo "make: this target mounts, creates cgroups and starts containers: run it as root" >&2; exit 1; }

need-build:
	@command -v $(CARGO) >/dev/null || { echo "make: cargo is missing: install Rust with rustup" >&2; exit 1; }
	@$(NEED) $(BUILD_PACKAGES)

need-node:
	@$(NEED) $(NODE_PACKAGES)

need-metrics:
	@$(NEED) $(METRICS_PACKAGES)

need-guest:
	@$(NEED) $(GUEST_PACKAGES)

need-kind:
	@$(NEED) $(KIND_PACKAGES)

need-deb: need-build
	@$(NEED) $(DEB_PACKAGES)

need-rpm:
	@$(NEED) $(RPM_PACKAGES)

need-image:
	@$(NEED) busybox-static

need-packages:
	@$(NEED) $(PACKAGE_PACKAGES)
