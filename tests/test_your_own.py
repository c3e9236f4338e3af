"""docs/your-own.md is walked as it stands: its files are written, its commands are run by a shell in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import databases
import hub_server
import pytest
import toys

PAGE = (toys.ROOT / "docs" / "your-own.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)


def test_every_block_is_a_file_or_commands():
    for language, text in BLOCKS:
        named = re.match(r"# [\w.]+\n", text)
        assert named or (
            not language and all(re.match("whetstone |python |echo ", line) for line in text.splitlines())
        ), text


@pytest.mark.slow
def test_the_walk(tmp_path):
    project, programs = tmp_path / "my-project", tmp_path / "bin"
    for folder in (project, programs):
        folder.mkdir()
    (programs / "whetstone").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flows.cli.main "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    home = tmp_path / "home"
    databases.prepare(home)
    said = ""
    with hub_server.running() as hub:
        kept = {
            k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")
        }
        environment = kept | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": toys.python_path(), "WHETSTONE_HOME": str(home),
            "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_x", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1",
        }  # fmt: skip
        for _, text in BLOCKS:
            if named := re.match(r"# ([\w.]+)\n", text):
                (project / named[1]).write_text(text)
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=project,
                env=environment,
                capture_output=True,
                text=True,
                timeout=500,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            said += done.stdout
    assert "0 are broken" in said and "guessing" in said and "shouted" in said
    prompts, games = sorted(home.glob("runs/rlvr-*/report/rollouts.jsonl"), key=lambda file: file.stat().st_mtime)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    assert rows and all(row["components"].keys() == {"verifier", "short"} for row in rows)
    assert len({row["components"]["verifier"] for row in rows}) > 2, "a share of letters, not only right and wrong"
    played = [json.loads(line) for line in games.read_text().splitlines()]
    assert {row["prompt"][0]["content"].split()[0] for row in played if "prompt" in row} == {"guess"}
    assert {row["score"] for row in played} == {0.0, 1.0}
    (results,) = home.glob("runs/evaluate-*/results.json")
    scores = json.loads(results.read_text())["evaluation"]["sft"]["shouted"]
    assert scores["pass@1"]["value"] > 0.4, "the benchmark asks as the chats do"
    assert {"model.safetensors", "README.md"} <= {file.name for file in (project / "my-model").iterdir()}
    assert hub.files["model.safetensors"] == (project / "my-model" / "model.safetensors").read_bytes()
