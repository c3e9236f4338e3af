"""Uploads to a stand-in of the hub: what arrives, who may see it, and what is said where it does not."""

from __future__ import annotations

import exported
import hub_server
import pytest
import toys

from pipelines.base.errors import UserError
from tasks.export import hub, trained

TOKEN = "hf_of_this_machine"


def push(home, url: str, *more: str, **env: str):
    return toys.whetstone(
        "push", "mine", "ann/mine", *more, home=home, check=False, HF_ENDPOINT=url, HF_TOKEN=TOKEN, HF_HUB_DISABLE_XET="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HOME=str(home / "hf"), **env,
    )  # fmt: skip


@pytest.mark.slow
def test_all_of_it_arrives_in_one_commit(home):
    model = exported.run()["short"].path / "model"
    with hub_server.running() as there:
        done = push(home, there.url)
        assert (done.returncode, done.stdout) == (0, f"{there.url}/ann/mine\n"), done.stderr
        assert there.created == [{"name": "mine", "organization": "ann", "visibility": "private"}]
        assert len(there.commits) == 1 and there.tokens >= {f"Bearer {TOKEN}"}
        assert there.files.keys() == {p.name for p in model.iterdir()} | {"README.md"}
        assert there.files["model.safetensors"] == (model / "model.safetensors").read_bytes()
        assert b"# ann/mine" in there.files["README.md"] and b'from_pretrained("ann/mine")' in there.files["README.md"]
        everything = b"".join(there.files.values())
        assert TOKEN.encode() not in everything and b"/home/ann" not in everything
    with hub_server.running() as there:
        assert push(home, there.url, "--public", "--licence", "apache-2.0").returncode == 0
        assert there.created[0]["visibility"] == "public" and b"license: apache-2.0" in there.files["README.md"]


@pytest.mark.slow
@pytest.mark.parametrize(("status", "told"), [(401, "hf auth login"), (403, "hf auth login"), (400, "Check the name")])
def test_refusals(home, status, told):
    exported.run()
    with hub_server.running(refuses=status) as there:
        done = push(home, there.url)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr and TOKEN not in done.stderr


@pytest.mark.parametrize("name", ["mine", "a/b/c", "ann/", "/mine", "ann/mi ne", "ann/mine?token=x"])
def test_names_that_no_repository_has(home, name):
    exported.run()
    with pytest.raises(UserError, match="OWNER/NAME"):
        hub.push(trained.find("mine"), name)


@pytest.mark.slow
def test_a_hub_that_is_away(home):
    exported.run()
    done = push(home, "http://127.0.0.1:9")
    assert done.returncode == 2 and "does not answer" in done.stderr and "Traceback" not in done.stderr
