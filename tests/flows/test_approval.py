"""What a promotion that waits for a person does about it; `tests/flows/cli/test_promote.py` has one with a real server."""

from __future__ import annotations

import homes
import numpy as np
import pytest

from flows import approval
from tasks import notices
from tasks.promotion import promote as promotion


def scores(rate: float, seed: int) -> list[list[float]]:
    return (np.random.default_rng(seed).random((60, 4)) < rate).astype(float).tolist()


@pytest.mark.parametrize("events", ["waiting", "worse"])
def test_the_recipe_of_the_candidate_says_who_is_told_that_it_waits(home, monkeypatch, events):
    from tasks.tracking.client import client

    run_id = homes.registered("waits", {"base": {"sums": scores(0.1, 1)}, "rlvr": {"sums": scores(0.7, 2)}})
    client().log_text(
        run_id, f"notify: {{webhook_env: NIGHTLY_WEBHOOK, events: [{events}], email: null}}", "recipe.yaml"
    )
    chosen, sent = promotion.candidate(run_id, "waits"), []
    monkeypatch.setattr(notices, "_post", lambda message, settings: sent.append(message.text()))
    approval._tell_who_decides(chosen, {"why": ["sums: the candidate is better"]}, 24)
    if events == "worse":
        assert sent == []
        return
    (text,) = sent
    assert text.startswith(
        "waiting: waits version 1 may become the champion\n24 hours are left to answer\nsums: the candidate is better"
    )


def test_whoever_resumes_without_an_answer_says_no():
    assert approval.Approval().promote is False


def test_the_form_says_what_is_compared_with_what_and_what_an_answer_does():
    evidence = {
        "name": "demo", "candidate": {"version": "4"}, "champion": {"version": "3"}, "look": 2, "level": 0.0008, "why": ["sums: better"],
        "promote": True, "rule": {"primary": "sums", "guards": {"words": 0.02}, "alpha": 0.05, "looks": 30},
    }  # fmt: skip
    text = approval._markdown(evidence)
    assert (
        "demo version 4 was compared with the champion, version 3: better on sums, not worse by 2 points on words?"
        in text
    )
    assert "without, nothing changes" in text and "It is not promoted" in approval._markdown(
        evidence | {"promote": False}
    )
