"""Stages that SkyRL's JAX server trains on this machine's CPU, by the protocol's own client: `make test-tinker`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import ranks
import servers
import toys
from safetensors.torch import load_file
from tinker_server import Direct

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.policy import Policy
from pipelines.engine.tinker.probe import probe
from pipelines.engine.tinker.session import Row, Session
from pipelines.recipe.server import RemoteEngine

SKYRL = Path(os.environ.get("WHETSTONE_SKYRL", "/nowhere"))
pytestmark = [
    pytest.mark.tinker,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        not (SKYRL / "bin/uv").exists(), reason="no SkyRL: `make test-tinker` installs one and sets WHETSTONE_SKYRL"
    ),
]
BACKEND = {"max_lora_adapters": 6, "max_lora_rank": 8}


@contextlib.contextmanager
def serving(base: Path, kept: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server with a model folder. It starts its engine by `uv run` with the flags of its own start."""
    kept.mkdir(exist_ok=True)
    python = SKYRL / "bin/python"
    command = [
        SKYRL / "bin/uv", "run", "--no-project", "--offline", "--python", python, "-m", "skyrl.tinker.api",
        "--host", "127.0.0.1", "--port", str(port), "--base-model", base, "--backend", "jax", "--backend-config", json.dumps(BACKEND),
        "--database-url", f"sqlite:///{kept}/tinker.db", "--checkpoints-base", kept / "checkpoints",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")} | {
        "PATH": f"{SKYRL / 'bin'}{os.pathsep}{os.environ['PATH']}", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(SKYRL / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }  # fmt: skip
    with open(kept / "log", "ab") as log:
        process = subprocess.Popen(
            command, cwd=kept, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        servers.wait_for(f"http://127.0.0.1:{port}/api/v1/get_server_capabilities", 300)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def running(start, tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """A server's address and its base model."""
    base, port = start / "sft/out/model", servers.free_port()
    with serving(base, tmp_path_factory.mktemp("skyrl") / "kept", port):
        yield f"http://127.0.0.1:{port}", base


def test_log_probabilities_and_what_the_server_does_with_derivatives(running):
    url, base = running
    session = Session(RemoteEngine(url=url, rank=8, timeout_s=3000), str(base), seed=1)
    rows = [
        Row([1, 5, 9, 4, 7], [5, 9, 4, 7, 8], [2, 4]),
        Row([1, 3, 4, 5, 6, 7, 20], [3, 4, 5, 6, 7, 20, 21], [0, 3, 6]),
    ]
    local = Direct(Policy(models.load_model(str(base), Model(path=str(base))), Sampling())).log_probs(rows)
    for remote in (session.log_probs(rows), session.reference_log_probs(rows, None)):
        worst = max(abs(a - b) for x, y in zip(remote, local, strict=True) for a, b in zip(x, y, strict=True))
        print("largest difference of a log-probability", worst)
        assert worst < 1e-5
    events = []
    probe(session, range(1, 9), lambda text, **about: events.append((text, about)))
    assert events[0][1] == {"derivatives_as": "importance_sampling", "averages_over_rows": True, "clips": False}
    session.close()


def test_either_side_is_killed(tmp_path, start):
    """Sampling, log-probabilities, gradients and steps on the server; each step counts once."""
    base, port = start / "sft/out/model", servers.free_port()
    engine = f"{{url: 'http://127.0.0.1:{port}', rank: 8, timeout_s: 240}}"
    work = toys.job(
        tmp_path / "work", start, "presets=[dr_grpo]", "rlvr.mini_batches=1", "rlvr.steps=6", "rlvr.commit.every=1",
        f"rlvr.engine={engine}",
    )  # fmt: skip
    ranks.start_from(work, base)
    with serving(base, tmp_path / "kept", port) as server:
        stage = ranks.start_stage("pipelines.rlvr", work)
        ranks.kill_after(work, 2, stage, 3000)
        stage = ranks.start_stage("pipelines.rlvr", work)
        ranks.kill_after(work, 4, server, 3000)
        _, said = stage.communicate(timeout=3000)
        assert stage.returncode == 3, said[-3000:]
    with serving(base, tmp_path / "kept", port):
        stage = ranks.start_stage("pipelines.rlvr", work)
        _, said = stage.communicate(timeout=3000)
        assert stage.returncode == 0, said[-3000:]
    assert ranks.steps(work) == list(range(1, 7))
    draws = [json.loads(line)["step"] for line in (work / "out/report/draws.jsonl").read_text().splitlines()]
    assert draws == list(range(1, 7))
    before, after = (load_file(folder / "model.safetensors") for folder in (base, work / "out/model"))
    assert max(float((before[name] - after[name]).abs().max()) for name in before) > 1e-4
    for step, values in toys.history(work):
        print(step, values.get("reward/mean"), values["mismatch/max"])
        assert values["mismatch/max"] < 1e-3
