"""docs/systems.md: what stands there of each system's parts."""

from __future__ import annotations

from flows.cli.systems import find
from scripts.docs import systems


def test_parts_that_were_reconstructed_are_named_beside_their_system():
    rows = {line.split("**")[1]: line for line in systems.markdown().splitlines() if line.startswith("| **")}
    assert "; reconstructed: `dcpo`" in rows["ChatShopBuddy (HRM, DCPO)"]
    assert "; reconstructed: `grsp`, `segments`" in rows["GRSP"]
    assert systems.reconstructed(find("D3S")) == ["d3s"]


def test_parts_from_official_code_are_not():
    assert systems.reconstructed(find("RLFR")) == []
