# make run     set up and run the quickstart
# make test    set up and run the tests that take minutes
# make wheel   a wheel in dist/, to be installed elsewhere
# make image   a container image (TORCH=cpu or cuda), where podman, buildah or docker is there
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# cpu: torch without CUDA, and never CUDA by accident. cuda: what PyPI serves, for machines with a GPU. An environment keeps the
# one that it has until the other is asked for (`make install TORCH=cuda`).
HAS    := $(patsubst $(VENV)/.installed-%,%,$(firstword $(wildcard $(VENV)/.installed-*)))
TORCH  ?= $(or $(HAS),$(shell if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then echo cuda; else echo cpu; fi))
# Tests that run side by side, a thread each; slow ones also wait for servers, schedules and processes that they start.
JOBS   ?= 2
SLOW_JOBS ?= $(shell expr $(JOBS) + 1)
TORCH_VERSION  := 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# The tests start hundreds of Python processes; each would compile the project again where an environment forbids bytecode.
unexport PYTHONDONTWRITEBYTECODE

IMAGE_BUILDER ?= $(firstword $(foreach each,podman buildah docker,$(shell command -v $(each))))
IMAGE ?= whetstone

.PHONY: run test test-slow test-long test-mutants test-deployed test-hostile test-gpu test-vllm test-ecosystem test-mirrors test-ray test-skypilot test-prefect-kubernetes test-tinker test-all check install wheel image docs docs-site bench claims clean

run: install
	$(BIN)/whetstone run recipes/quickstart.yaml

test: install
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile

test-slow: install
	$(BIN)/python -m pytest -m "slow and not deployed and not long" -n $(SLOW_JOBS) --dist worksteal tests

test-long: install
	$(BIN)/python -m pytest -m long -n $(JOBS) --dist worksteal tests

test-deployed: install
	$(BIN)/python -m pytest -m deployed

test-mutants: install
	$(BIN)/python tests/mutation --quick

test-hostile: install
	WHETSTONE_HOSTILE_COUNTS=1 $(BIN)/python -m pytest -m hostile tests/hostile $$($(BIN)/python tests/hostile/faults.py --files)

test-gpu: install
	$(BIN)/python -m pytest -m gpu tests/gpu

# vLLM pins other versions of what we use, so it has an environment of its own.
VLLM_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/vllm
test-vllm: install
	$(BIN)/python scripts/install_vllm.py "$(VLLM_ENV)"
	WHETSTONE_VLLM="$(VLLM_ENV)/bin/vllm" $(BIN)/python -m pytest -m vllm tests/real_vllm

# Environments of the ecosystem: verifiers 0.1 beside what we pin; verifiers 0.4, an OpenEnv server and LangGraph in a Python of their own.
OPENENV_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/openenv
VERIFIERS_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/verifiers
LANGGRAPH_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/langgraph
test-ecosystem: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[verifiers,openenv,textarena,minigrid,mcp]"
	test -x "$(OPENENV_ENV)/bin/python" || $(PYTHON) -m venv "$(OPENENV_ENV)"
	"$(OPENENV_ENV)/bin/python" -m pip install --quiet "openenv==0.10.0"
	test -x "$(VERIFIERS_ENV)/bin/python" || $(PYTHON) -m venv "$(VERIFIERS_ENV)"
	"$(VERIFIERS_ENV)/bin/python" -m pip install --quiet "verifiers==0.4.0"
	test -x "$(LANGGRAPH_ENV)/bin/python" || $(PYTHON) -m venv "$(LANGGRAPH_ENV)"
	"$(LANGGRAPH_ENV)/bin/python" -m pip install --quiet "langgraph==1.2.24" "langchain-openai==1.7.4"
	WHETSTONE_OPENENV="$(OPENENV_ENV)/bin/python" WHETSTONE_VERIFIERS="$(VERIFIERS_ENV)/bin/python" \
	  WHETSTONE_LANGGRAPH="$(LANGGRAPH_ENV)/bin/python" $(BIN)/python -m pytest \
	  tests/pipelines/environments tests/pipelines/rlvr/test_train_agent.py

# Clients of trackers and inspect_ai want older versions of what we pin (pillow, fsspec): they are in an environment of their own, which
# has everything else from ours.
MIRRORS_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/mirrors
PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
test-mirrors: install
	test -x "$(MIRRORS_ENV)/bin/python" || $(BIN)/python -m venv "$(MIRRORS_ENV)"
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" > \
	  "$$("$(MIRRORS_ENV)/bin/python" -c '$(PACKAGES)')/whetstone_beside.pth"
	"$(MIRRORS_ENV)/bin/python" -m pip install --quiet "wandb==0.31.0" "trackio==0.43.0" "inspect_ai==0.3.285"
	"$(MIRRORS_ENV)/bin/python" -m pytest tests/tasks/tracking/test_mirrors.py tests/tasks/tracking/mirror tests/tasks/export/test_inspect_logs.py

# Ray brings versions of its own of what we use: as above. Its servers listen on all interfaces, so it runs in a network namespace.
RAY_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/ray
test-ray: install
	test -x "$(RAY_ENV)/bin/python" || $(BIN)/python -m venv "$(RAY_ENV)"
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" > \
	  "$$("$(RAY_ENV)/bin/python" -c '$(PACKAGES)')/whetstone_beside.pth"
	"$(RAY_ENV)/bin/python" -m pip install --quiet "ray[default]==2.60.0" "prefect-ray==0.6.0"
	unshare --net --map-root-user sh -c 'ip link set lo up && \
	  WHETSTONE_RAY="$(RAY_ENV)/bin/python" $(BIN)/python -m pytest tests/tasks/test_real_ray.py'

# No cluster is asked: prefect-kubernetes makes the Job of a flow run.
PREFECT_KUBERNETES_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/prefect-kubernetes
test-prefect-kubernetes: install
	test -x "$(PREFECT_KUBERNETES_ENV)/bin/python" || $(BIN)/python -m venv "$(PREFECT_KUBERNETES_ENV)"
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" > \
	  "$$("$(PREFECT_KUBERNETES_ENV)/bin/python" -c '$(PACKAGES)')/whetstone_beside.pth"
	"$(PREFECT_KUBERNETES_ENV)/bin/python" -m pip install --quiet "prefect-kubernetes==0.8.0"
	"$(PREFECT_KUBERNETES_ENV)/bin/python" -m pytest tests/flows/test_deploy_kubernetes.py

# SkyPilot only reads a task file there: no cloud is asked.
SKYPILOT_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/skypilot
test-skypilot: install
	test -x "$(SKYPILOT_ENV)/bin/python" || $(PYTHON) -m venv "$(SKYPILOT_ENV)"
	"$(SKYPILOT_ENV)/bin/python" -m pip install --quiet "skypilot==0.14.1"
	WHETSTONE_SKYPILOT="$(SKYPILOT_ENV)/bin/python" $(BIN)/python -m pytest tests/tasks/test_skypilot.py

# SkyRL's JAX server pins other versions of what we use, needs Python 3.12, and starts its engine by uv; only the protocol's client is in
# our environment.
SKYRL_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/whetstone/skyrl
SKYRL_PYTHON ?= 3.12
test-tinker: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[tinker]"
	test -x "$(SKYRL_ENV)/bin/uv" || { $(BIN)/python -m venv "$(SKYRL_ENV)-uv" && "$(SKYRL_ENV)-uv/bin/pip" install --quiet uv && \
	  "$(SKYRL_ENV)-uv/bin/uv" venv --python "$(SKYRL_PYTHON)" "$(SKYRL_ENV)" && "$(SKYRL_ENV)-uv/bin/uv" pip install --quiet \
	  --python "$(SKYRL_ENV)/bin/python" uv "skyrl[tinker,jax]==0.3.0" "jax==0.12.0.1" "tinker==0.16.1"; }
	WHETSTONE_SKYRL="$(SKYRL_ENV)" $(BIN)/python -m pytest -m tinker -s tests/real_tinker

test-all: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m scripts.lint
	$(BIN)/lint-imports
	$(BIN)/mypy

INSTALLED := $(VENV)/.installed-$(TORCH)
install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.installed*
	$(BIN)/python -m pip install --quiet --upgrade pip
ifeq ($(TORCH),cpu)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH_VERSION)+cpu" || \
	  $(BIN)/python -m pip install --quiet "torch==$(TORCH_VERSION)+cpu" --index-url $(TORCH_CPU_INDEX)
else
	! $(BIN)/python -c 'from importlib.metadata import version; assert "+cpu" in version("torch")' 2>/dev/null || \
	  $(BIN)/python -m pip uninstall --quiet --yes torch
	$(BIN)/python -m pip install --quiet "torch==$(TORCH_VERSION)"
endif
	$(BIN)/python -m pip uninstall --quiet --yes whetstone  # what the distribution was called before
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,docs]"
	touch $@

wheel: install
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

# With podman, buildah, or docker and its daemon; the image is called $(IMAGE):cpu or $(IMAGE):cuda.
image:
	@test -n "$(IMAGE_BUILDER)" || { echo "make image needs podman, buildah or docker, and none of them is installed." >&2; exit 2; }
	@"$(IMAGE_BUILDER)" info >/dev/null 2>&1 || \
	  { echo "make image: \`$(IMAGE_BUILDER) info\` fails; docker needs its daemon, and podman and buildah user namespaces." >&2; exit 2; }
	"$(IMAGE_BUILDER)" build --file Containerfile --target $(TORCH) --tag $(IMAGE):$(TORCH) \
	  --build-arg TORCH_VERSION=$(TORCH_VERSION) --build-arg TORCH_CPU_INDEX=$(TORCH_CPU_INDEX) .

docs: install
	$(BIN)/python -m scripts.docs
	$(BIN)/python tests/hostile/faults.py docs/operations.md

docs-site: docs
	$(BIN)/mkdocs build --strict

# Runs that are missing of the claims of docs/claims.md; it continues where it was stopped.
claims: install
	$(BIN)/whetstone claims run

bench: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.step --case quickstart-zero-variance
	$(BIN)/python -m benchmarks.sft
	$(BIN)/python -m benchmarks.step --case wide-zero-variance --blocks 2 --steps 2
	$(BIN)/python -m benchmarks.step --case wide --blocks 2 --steps 1
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.evaluation

clean:
	rm -rf .whetstone site .pytest_cache .mypy_cache .ruff_cache
