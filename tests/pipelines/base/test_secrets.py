"""No password in a recipe, none in a text."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.base.secrets import authorization, redact
from pipelines.recipe.read import read_recipe

URLS = [
    "http://ann:pa55word@host:8000", "http://pa55word@host", "http://host:8000/v1?api_key=pa55word", "http://host?token=pa55word&n=1",
    "https://host/x?X-Amz-Signature=pa55word", "http://ann:pa55/word@host",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_addresses_with_secrets_are_refused_and_not_repeated(tmp_path, url):
    override = f"rlvr.sampler={{url: '{url}', weights: /tmp/w}}"
    with pytest.raises(RecipeError, match=r"rlvr\.sampler\.url") as caught:
        read_recipe(toys.recipe(tmp_path), [override])
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_texts_are_redacted(url):
    told = redact(f"HTTPConnectionPool: {url} refused (Authorization: Bearer abcdef123456)")
    assert "pa55" not in told and "abcdef" not in told and "refused" in told


def test_values_of_secret_variables_are_redacted(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cr3t-value")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:p4ssphrase")
    assert redact("a s3cr3t-value b p4ssphrase admin") == "a *** b *** admin"


def test_plain_texts_stay():
    for text in (
        "sqlite:////home/x/mlflow.db",
        "http://127.0.0.1:5000/#/experiments/1",
        "#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=whetstone-curves&compareRunsMode=CHART",
        "keys are 16 long",
        "a@b.c wrote",
    ):
        assert redact(text) == text


def test_a_key_of_the_environment_is_a_bearer_token(monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    assert authorization("MY_KEY", "rlvr.sampler") == {"Authorization": "Bearer abc"}
    monkeypatch.setenv("MY_KEY", "")
    with pytest.raises(
        RecipeError, match=r"rlvr\.sampler\.api_key_env: the environment has no MY_KEY\. export MY_KEY="
    ):
        authorization("MY_KEY", "rlvr.sampler", RecipeError)
