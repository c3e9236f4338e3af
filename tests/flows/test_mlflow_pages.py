"""The pages that we print links to, looked at in a real browser on a real MLflow server; skipped where there is no Chromium."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import chain
import pytest
import servers
import toys

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]


def seen(address: str, profile) -> str:
    """The words of a page after its scripts have run."""
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=2400,2400",
        f"--user-data-dir={profile}",
    ]
    waits = ["--virtual-time-budget=40000", "--timeout=90000", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *options, *waits, address], capture_output=True, text=True, timeout=200, check=False
    )
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", done.stdout, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def _with_curves(*pipelines):
    """Rewards of four steps in the RLVR stage of each, as training logs them."""
    from mlflow.entities import Metric

    from tasks.tracking import api as tracking
    from tasks.tracking import outbox, views

    for pipeline in pipelines:
        run = outbox.uploaded(pipeline.results["rlvr"].artifact.path).run_id
        tracking.client().log_batch(
            run, [Metric("reward/mean", 0.1 * step, 1_700_000_000_000, step) for step in range(1, 5)]
        )
    views.update_views(pipelines[0].experiment_id)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A server with two pipeline runs that differ in one setting."""
    folder = tmp_path_factory.mktemp("pages")
    port = servers.free_port()
    address = f"http://127.0.0.1:{port}"
    env = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("WHETSTONE_HOME", str(folder / "home"))
        patch.setenv("MLFLOW_TRACKING_URI", address)
        with servers.running(servers.mlflow_command(folder, port), folder / "server.log", address + "/health", **env):
            from tasks import environment

            environment.prepare()
            recipe = toys.recipe(folder)
            first = chain.run(recipe)
            second = chain.run(recipe, "rlvr.advantage=rloo", mark="b")
            _with_curves(first, second)
            yield first, second, folder / "profile"


def test_the_printed_link_opens_the_pipelines_with_their_scores(pages):
    from tasks.tracking import links

    first, _, profile = pages
    text = seen(links.runs(first.experiment_id), profile)
    assert "Whetstone: pipeline runs" in text and "2 matching runs" in text
    assert "rlvr.advantage rloo" in text and "rlvr/palindromes/pass_at_1" in text and "rlvr.advantage.kind" in text
    assert "sft · toy" not in text, "stage runs are no rows of it"


def test_the_views_charts_are_ours(pages):
    from tasks.tracking import links

    first, _, profile = pages
    text = seen(links.runs(first.experiment_id, charts=True), profile)
    assert "Scores" in text and "What differs, and what it did" in text


def test_the_view_over_seeds_is_grouped(pages):
    from tasks.tracking import links

    first, _, profile = pages
    text = seen(links.runs(first.experiment_id, links.SEEDS_VIEW), profile)
    assert "Group by: rlvr.advantage.kind" in text and "(average)" in text


def test_learning_curves_have_a_line_for_each_arm(pages):
    from tasks.tracking import links

    first, _, profile = pages
    text = seen(links.runs(first.experiment_id, links.CURVES_VIEW, charts=True), profile)
    assert "Whetstone: learning curves" in text and "Learning curves (1)" in text
    assert "rlvr.advantage rloo (reward/mean)" in text and "toy (reward/mean)" in text, "a line for each arm"
    assert "rlvr · rlvr.advantage rloo" in text and "evaluate · toy" not in text and "sft · toy" not in text


def test_the_run_page_has_the_note_and_its_models(pages):
    from tasks.tracking import links, outbox

    first, _, profile = pages
    text = seen(links.run(first.experiment_id, first.parent), profile)
    assert "palindromes pass@1" in text and "0.500 [0.250, 0.500]" in text
    rlvr = outbox.uploaded(first.results["rlvr"].artifact.path).run_id
    assert "Input" in (text := seen(links.run(first.experiment_id, rlvr), profile)) and "toy-sft" in text


def test_answers_of_two_checkpoints_stand_side_by_side(pages):
    from tasks.tracking import links, outbox

    first, _, profile = pages
    runs = outbox.uploaded(first.results["evaluate"].artifact.path).runs
    text = seen(links.answers(first.experiment_id, runs["rlvr"], runs["sft"]), profile)
    assert "palindrome 0" in text and "pass_share" in text and "correct" in text
