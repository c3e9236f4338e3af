"""What tests with a real vLLM share: where it is, how it is started, what a stage reported."""

from __future__ import annotations

import os

import pytest
import toys

VLLM = os.environ.get("WHETSTONE_VLLM", "")
MARKS = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not os.path.exists(VLLM), reason="no vLLM: `make test-vllm` installs one and sets WHETSTONE_VLLM"
    ),
]


def serve(servers=1, *more):
    """A recipe's `serve`, with further arguments of vLLM's."""
    command = ["env", "VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", VLLM, "serve"]
    return {"command": command, "arguments": ["--enforce-eager", *more], "startup_s": 600, "count": servers}


def values(folder, name):
    """What a stage reported under a name, step by step."""
    return [b["values"].get(name) for b in toys.spool(folder / "work") if b["kind"] == "metrics"]
