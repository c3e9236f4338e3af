"""Answers rewritten with the criteria that they miss."""

from __future__ import annotations

import re

import judge_server
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import context, parts, request, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Role

TEMPLATE = "T{task}|+{met}|-{unmet}|A{answer}|"
WEIGHED = [
    {"criterion": "has a", "weight": 2},
    {"criterion": "has b", "weight": 2},
    {"criterion": "has c", "weight": 1},
]


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))


def ticks(body):
    """Whether the letter of the criterion stands in the answer; "?" in it gets an answer that cannot be read."""
    system, _, _, text = judge_server.parts(body)
    wanted = re.search(r"has (\w)", system)[1]
    return "no idea" if "?" in text else f"Met: {'yes' if wanted in text else 'no'}"


def rollouts(judge, first, rewritten, *, criteria=WEIGHED, seed=0, problems=1, **options):
    """Rows of a group whose answers are `first`, rewritten as `rewritten(answer)`; and the context."""

    def script(prefix, number):
        if "|A" not in prefix:
            return first[number % len(first)]
        return rewritten(prefix.rpartition("|A")[2].rstrip("|"))

    spec = {"kind": "herl", "template": TEMPLATE, "judge": {"model": "m", "url": judge.url, "criteria": criteria}}
    ctx = context(script, max_tokens=20, seed=seed)
    requests = [request(f"p{i}", len(first), group=i) for i in range(problems)]
    return bind("rlvr.rollout", {**spec, **options}).fn.run(requests, ctx), ctx


def written(rows):
    return [row.text for row in rows if int(Role.TEACHER_FORCED) in row.role]


def test_the_sheet_s_example():
    """0.6 with a rewrite of 1.0 becomes 0.62 by alpha 0.05."""
    rubric = [{"criterion": "has a", "weight": 3}, {"criterion": "has b", "weight": 2}]
    with judge_server.running(ticks) as judge:
        rows, _ = rollouts(judge, ["a", "b"], lambda answer: "ab", criteria=rubric, replace=0)
    assert [row.score for row in rows] == pytest.approx([0.62, 0.4]) and not written(rows)
    assert rows[0].components["rewrite_gain"] == pytest.approx(0.4) and "rewrite_gain" not in rows[1].components


def test_the_best_answers_are_rewritten_with_what_they_miss():
    with judge_server.running(ticks) as judge:
        rows, ctx = rollouts(judge, ["a", "b", "c", "?"], lambda answer: answer + "c")
    [_, rewriting] = ctx.sampler.calls
    asked = [tuple(re.findall(r"\|\+(.*?)\|-(.*?)\|A(.*?)\|", prefix, re.DOTALL)) for prefix in rewriting.prefixes]
    assert asked == [(("- has a", "- has b\n- has c", "a"),), (("- has b", "- has a\n- has c", "b"),)], (
        "ties, 2 of 5 each"
    )
    [row] = [row for row in rows if int(Role.TEACHER_FORCED) in row.role]
    assert row.text in ("ac", "bc") and row.score == pytest.approx(0.6) and row.components["rewrite"] == 1
    assert row.logp_old == [0.0] * len(row.tokens) and row.group == 0
    others = [row for row in rows if row.score is not None and not written([row])]
    gains = {row.text: row.score for row in others}
    assert all(gains[text] == pytest.approx(0.4 + 0.05 * 0.2) for text in ("a", "b") if text in gains)
    assert {row.text: row.score for row in rows}.get("?") is None, "an answer that cannot be read is unscored"


@pytest.mark.parametrize("rewrite_prompt", [True, False])
def test_a_rewrite_follows_the_prompt_that_it_was_drawn_with_or_the_problem_s(rewrite_prompt):
    with judge_server.running(ticks) as judge:
        rows, _ = rollouts(judge, ["a", "a"], lambda answer: "ab", rewrite_prompt=rewrite_prompt)
    [row] = [row for row in rows if int(Role.TEACHER_FORCED) in row.role]
    (role, prompt), (forced, text) = parts(row)
    assert (role, forced, text) == (Role.PROMPT, Role.TEACHER_FORCED, "ab") and row.tokens[
        -1
    ] == tokenizer().eos_token_id
    assert ("|Aa|" in prompt) == rewrite_prompt and (rewrite_prompt or prompt == "p0")


def test_worse_rewrites_take_no_place_and_lower_the_reward():
    with judge_server.running(ticks) as judge:
        rows, _ = rollouts(judge, ["a", "b"], lambda answer: "c")
    assert not written(rows) and [row.score for row in rows] == pytest.approx([0.4 - 0.05 * 0.2] * 2)


def test_an_answer_says_nothing_to_the_template():
    with judge_server.running(ticks) as judge:
        _, ctx = rollouts(judge, ["{met}"], lambda answer: "a")
    assert "|A{met}|" in ctx.sampler.calls[1].prefixes[0]


def test_without_a_judge_the_verifier_s_verdict_is_the_criterion():
    script = lambda prefix, number: "ok" if "|A" in prefix or number == 3 else "no"  # noqa: E731
    ctx = context(script)
    rollout = bind("rlvr.rollout", {"kind": "herl", "template": TEMPLATE}).fn
    rows = rollout.run([request("p", 2, group=0), request("q", 2, group=1)], ctx)
    assert ["-- The answer is correct." in prefix for prefix in ctx.sampler.calls[1].prefixes] == [True] * 2 and all(
        row.group in (0, 1) for row in rows
    )
    assert written(rows) == ["ok"] and [row.group for row in rows] == [0, 0, 1, 1]
    assert sorted((row.score, row.correct) for row in rows[:2]) in ([(0.05, False), (1.0, True)],)
    assert sorted(row.score for row in rows[2:]) == [0.0, 1.0], "a group with an answer at the threshold is left alone"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "ab", "abc", "c", "x"]), min_size=1, max_size=5), st.integers(0, 10), st.data())
def test_laws(rule, first, seed, data):
    """Groups keep their size; those at the threshold are untouched; a rewrite is never worse than the group's best was."""
    to = data.draw(st.sampled_from(["x", "ab", "abc"]))
    plain, _ = rollouts(rule, first, lambda answer: to, seed=seed, alpha=0.0, replace=0)
    rows, _ = rollouts(rule, first, lambda answer: to, seed=seed, alpha=0.0)
    before = [row.score for row in plain]
    assert [(r.text, r.tokens) for r in plain] == [(text, [*r.tokens]) for text, r in zip(first, plain, strict=True)]
    assert len(rows) == len(first) and {row.group for row in rows} == {0}
    drawn = [row for row in rows if written([row])]
    assert len(drawn) <= 1 and all(row.score >= max(before) for row in drawn)
    if max(before) >= 1:
        assert not drawn
    assert sum(a is not b and a.text != b.text for a, b in zip(rows, plain, strict=True)) <= len(drawn)


@pytest.fixture(scope="module")
def rule():
    with judge_server.running(ticks) as judge:
        yield judge


def test_what_the_judge_lacks_is_named():
    with pytest.raises(RecipeError, match=r"rlvr\.rollout\.judge\.model"):
        bind("rlvr.rollout", {"kind": "herl", "judge": {"url": "http://x"}})
    with pytest.raises(RecipeError, match=r"rlvr\.rollout\.judge\.criteria"):
        bind("rlvr.rollout", {"kind": "herl", "judge": {"model": "m", "criteria": [{"weight": 1}]}})


def test_places_are_drawn_from_the_stream():
    with judge_server.running(ticks) as judge:
        places = {
            [bool(written([row])) for row in rollouts(judge, ["a"] * 4, lambda a: "abc", seed=seed)[0]].index(True)
            for seed in range(12)
        }
    assert len(places) > 1


@pytest.mark.slow
def test_rewrites_train_through_the_loop(tmp_path, start):
    """The toy's answers are ticked off by a judge behind HTTP; rewrites join the groups and the weights move."""
    seen = []

    def rule(body):
        answer = judge_server.parts(body)[3]
        seen.append(answer)
        return f"Met: {'yes' if len(answer) % 2 else 'no'}"

    with judge_server.running(rule) as judge:
        spec = f"{{kind: herl, template: '{{answer}}', judge: {{model: m, url: '{judge.url}', criteria: [odd]}}}}"
        made = toys.trainer(
            tmp_path, start, toys.recipe(tmp_path), "presets=[herl]", f"rlvr.rollout={spec}", "rlvr.sampling.temperature=1.3"
        )  # fmt: skip
        before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
        assert made.run()["steps"] == 4
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert seen and torch.isfinite(after).all() and not torch.equal(before, after)
    history = {}
    for _, values in toys.history(tmp_path / "work"):
        for name, value in values.items():
            history.setdefault(name, []).append(value)
    assert any(history.get("reward_component/rewrite", [])), "a rewrite took a row's place"
    assert max(history["mismatch/max"]) < 1e-4
