"""What the folder that a trainer has left is completed with."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import toys

COMPLETES = """
import sys
from pathlib import Path
from pipelines.external import model
model._complete(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_weights_alone_are_completed_from_a_model_of_the_hub(tmp_path):
    cache = tmp_path / "hub" / "models--org--m"
    folder, out = cache / "snapshots" / ("2" * 40), tmp_path / "out"
    for made in (cache / "refs", folder, out):
        made.mkdir(parents=True)
    (cache / "refs" / "main").write_text("2" * 40)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (out / "tokenizer.json").write_text('{"of": "the trainer"}')
    done = subprocess.run(
        [sys.executable, "-c", COMPLETES, str(out), "org/m"], cwd=toys.ROOT, capture_output=True, text=True, check=False,
        env=toys.environment(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"config.json", "tokenizer.json"}
    assert json.loads((out / "tokenizer.json").read_text()) == {"of": "the trainer"}
