"""The server that is started: which program, with what, and what is printed before it takes over."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import exported
import pytest
import servers
import toys

from flows.cli import serve
from pipelines.base.errors import UserError

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


@pytest.mark.slow
@pytest.mark.server
def test_transformers_answers(home, tmp_path):
    pytest.importorskip("uvicorn")
    pytest.importorskip("openai")
    model, port = exported.run()["short"].path / "model", servers.free_port()
    command = [sys.executable, "-m", "flows.cli.main", "serve", "mine", "--engine", "transformers", "--port", str(port)]
    environment = toys.environment(WHETSTONE_HOME=str(home), HF_HUB_OFFLINE="1")
    with servers.running(command, tmp_path / "log", f"http://127.0.0.1:{port}/health", **environment):
        body = {"model": str(model), "messages": [{"role": "user", "content": "abc"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            (choice,) = json.load(reply)["choices"]
    assert choice["message"]["role"] == "assistant"
    assert (tmp_path / "log").read_text().startswith(f"{model.parent.name} at http://localhost:{port}/v1")


def test_a_server_that_lacks_a_package_is_not_started(tmp_path, monkeypatch):
    """Every environment of ours has the command `transformers`, and its server only starts with openai."""
    program(tmp_path / "bin", "transformers")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert serve._engine(None) == tmp_path / "bin" / "transformers"
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="its server needs the package openai"):
        serve._engine(None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other" / "python"))
    assert serve._engine(None) == tmp_path / "bin" / "transformers", "of another environment nothing is known"
