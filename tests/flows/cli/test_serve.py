"""The server that is started: which program, with what, and what is printed before it takes over."""

from __future__ import annotations

import sys
from pathlib import Path

import exported
import pytest
import toys

STAND_IN = f"#!{sys.executable}\nimport os, sys\nprint(os.path.basename(sys.argv[0]), *sys.argv[1:])\nsys.exit(7)\n"


def program(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(STAND_IN)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("installed", "options", "started"),
    [
        (["vllm", "transformers"], [], "vllm"), (["transformers"], [], "transformers"),
        (["vllm", "transformers"], ["--engine", "transformers", "--port", "8123"], "transformers"),
        (["vllm"], ["--host", "0.0.0.0", "--options=--max-model-len 64"], "vllm"),
    ],
)  # fmt: skip
def test_what_is_started(home, tmp_path, installed, options, started):
    model = exported.run()["short"].path / "model"
    for name in installed:
        program(tmp_path / "bin", name)
    done = toys.whetstone("serve", "mine", *options, home=home, check=False, PATH=str(tmp_path / "bin"))
    announced, words = done.stdout.splitlines()
    port = "8123" if "8123" in options else "8000"
    host = "0.0.0.0" if "0.0.0.0" in options else "127.0.0.1"
    more = " --max-model-len 64" if "--options=--max-model-len 64" in options else ""
    assert words == f"{started} serve {model} --host {host} --port {port}{more}"
    assert f"http://localhost:{port}/v1" in announced and str(model) in announced
    assert done.returncode == 7, "the server's own"


def test_an_engine_that_is_not_here(home, tmp_path):
    exported.run()
    done = toys.whetstone("serve", "mine", "--engine", "vllm", home=home, check=False, PATH=str(tmp_path))
    assert done.returncode == 2 and "--engine vllm" in done.stderr and "docs/servers.md" in done.stderr
