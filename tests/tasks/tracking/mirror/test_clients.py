"""Whether anybody is logged in to wandb, as the client finds it."""

from __future__ import annotations

import pytest

from tasks.tracking.mirror.clients import Wandb, plain


@pytest.mark.parametrize(
    ("key", "server", "netrc", "logged_in"),
    [
        (None, None, None, False),
        ("k" * 40, None, None, True),
        (None, None, "machine api.wandb.ai login user password k", True),
        (None, None, "machine example.org login user password k", False),
        (None, "https://wandb.example.org", "machine wandb.example.org login user password k", True),
        (None, "https://wandb.example.org", "machine api.wandb.ai login user password k", False),
    ],
)
def test_logged_in_is_a_key_for_the_server(tmp_path, monkeypatch, key, server, netrc, logged_in):
    for name, value in (("WANDB_API_KEY", key), ("WANDB_BASE_URL", server)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    if netrc:
        (tmp_path / "netrc").write_text(netrc + "\n")
    assert Wandb.logged_in() == logged_in


@pytest.mark.parametrize(
    ("name", "told"), [("a/b c", "a-b-c"), ("..", "whetstone"), ("toy lr=1e-5", "toy-lr=1e-5"), ("x" * 300, "x" * 120)]
)
def test_a_name_is_plain_everywhere(name, told):
    assert plain(name) == told
