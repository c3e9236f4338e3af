"""The doctor's findings about the processor."""

from __future__ import annotations

import sys

import pytest
import torch

from flows.cli import doctor
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_this_processor_s_flags_are_read():
    assert "fpu" in machine.cpu_flags() or "fp" in machine.cpu_flags()
