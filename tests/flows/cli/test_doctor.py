"""The doctor's findings about the processor, and about the messages of a recipe."""

from __future__ import annotations

import sys

import pytest
import servers
import torch

from flows.cli import doctor
from pipelines.recipe.read import read_recipe
from tasks import machine


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of the CPU")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"avx2", "fma"}, "float32 is faster here"),
        ({"avx512f", "avx512_bf16"}, "has instructions for it"),
        ({"amx_bf16"}, "has instructions for it"),
        (set(), "not known"),
    ],
)
def test_bfloat16_is_judged_by_the_processor(flags, words):
    finding = doctor.bfloat16(flags)
    assert words in finding.what and finding.level == "ok"


@pytest.mark.parametrize(
    ("gpus", "there", "words"),
    [((), True, "servers are for GPUs"), ((80,), True, "sampler: {serve: true}"), ((80,), False, "no vllm on PATH")],
)
def test_vllm_is_recommended_where_there_is_a_gpu(monkeypatch, gpus, there, words):
    monkeypatch.setattr(machine, "gpu_bytes", lambda: gpus)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/vllm" if there and name == "vllm" else None)
    finding = doctor.decoding()
    assert finding.level == "ok" and words in finding.what


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_this_processor_s_flags_are_read():
    assert "fpu" in machine.cpu_flags() or "fp" in machine.cpu_flags()


def test_messages_of_a_recipe_are_judged_channel_by_channel(monkeypatch):
    def told(*changes):
        return doctor.messages(read_recipe("recipes/quickstart.yaml", list(changes)))

    (finding,) = told()
    assert finding.level == "ok" and "nobody is told" in finding.what
    monkeypatch.delenv("NIGHTLY_WEBHOOK", raising=False)
    (finding,) = told("notify={webhook_env: NIGHTLY_WEBHOOK}")
    assert (
        finding.level == "fail" and "the environment has no NIGHTLY_WEBHOOK" in finding.what and "worker" in finding.fix
    )
    monkeypatch.setenv("NIGHTLY_WEBHOOK", f"http://127.0.0.1:{servers.free_port()}/services/T0KEN")
    (finding,) = told("notify={webhook_env: NIGHTLY_WEBHOOK}")
    assert finding.level == "fail" and "refused" in finding.what and "T0KEN" not in finding.what


def test_the_server_of_a_recipe_s_sandbox_is_asked(monkeypatch):
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", "k")
    lent = read_recipe("recipes/quickstart.yaml", ['sandbox={url: "http://127.0.0.1:9"}'])
    (finding,) = doctor.lent_sandbox(lent)
    assert finding.level == "fail" and "does not answer" in finding.what and "Start it" in finding.fix
    assert doctor.lent_sandbox(read_recipe("recipes/quickstart.yaml")) == []
