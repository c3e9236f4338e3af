"""Problems that the policy writes from its correct answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import answered, context, parts, request

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data import chat
from pipelines.data.records import Role, by_group
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.pack import pack

MARKS = {"template": "W{answer}|", "question": "Q{problem}|", "opening": "[", "closing": "]"}


def rollouts(requests, script, **settings):
    ctx = context(script, max_tokens=40)
    return bind("rlvr.rollout", {"kind": "svs", **MARKS, **settings}).fn.run(requests, ctx), ctx


def test_a_step_by_hand():
    """X is solved by half, Y always: X's two answers give three texts each, and of the six four hold a problem."""

    def script(prefix, number):
        if "W" in prefix:
            return ["[V1]", "so: <think>[no]</think>[V2] x", "nothing"][number % 3]
        if "V1" in prefix:
            return ["ok", "no"][number % 2]
        if "X" in prefix:
            return ["ok", "no", "ok", "no"][number]
        return "ok"

    asked = [request("X", 4, group=0), request("Y", 4, group=1)]
    rows, ctx = rollouts(asked, script, variants=3, solutions=2)
    answers, texts, solutions = rows[:8], rows[8:14], rows[14:]
    assert [row.group for row in answers] == [0] * 4 + [1] * 4 and [r.score for r in answers[:4]] == [1, 0, 1, 0]
    assert [row.group for row in texts] == [2] * 3 + [4] * 3, "a group for each correct answer, told from those of Y"
    assert [row.score for row in texts] == [1, 0, 0] * 2, "solved by half; always; no problem"
    assert [row.status for row in texts] == ["correct", "incorrect", "unparsable"] * 2
    assert [row.correct for row in texts] == [True, False, False] * 2 and texts[0].components == {"variant": 1.0}
    assert [row.group for row in solutions] == [6, 6, 8, 8, 10, 10, 12, 12]
    assert [row.score for row in solutions] == [1, 0, 1, 1] * 2 and {r.uid for r in rows[8:]} == {asked[0].problem.uid}
    assert solutions[1].components == {"variant_answer": 0.0} and answers[0].components == {"verifier": 1.0}
    _, writing, solving = ctx.sampler.calls
    assert all("Wok|" in prefix and "X" not in prefix for prefix in writing.prefixes), "the problem is not shown"
    assert ["QV1|" in prefix for prefix in solving.prefixes] == [True, True, False, False] * 2
    assert all(parts(row)[1][0] == Role.POLICY and len(row.logp_old) == len(row.tokens) for row in rows)
    assert [row.prompt and row.prompt[-1]["content"] for row in (answers[0], texts[0], solutions[2])] == [
        None,
        "Wok|",
        "QV2|",
    ]
    assert (texts[0].logged, texts[2].logged) == ({"variant": "V1"}, {})
    assert int(pack(rows, step=0, total_steps=1)["scored"].sum()) == len(rows) == 22


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=2, max_size=2), st.data())
def test_laws(right, data):
    """Texts come from correct answers to half-solved problems alone, and are paid for what their own answers say."""
    low, high = sorted(data.draw(st.lists(st.sampled_from([0, 0.25, 0.5, 1]), min_size=2, max_size=2)))
    useful = sorted(data.draw(st.lists(st.sampled_from([0, 0.25, 0.5, 1]), min_size=2, max_size=2)))
    wins = data.draw(st.lists(st.booleans(), min_size=7, max_size=7))

    def script(prefix, number):
        if "W" in prefix:
            return "[V]"
        flags = wins if "V" in prefix else right[0] + right[1]
        return "ok" if flags[number % len(flags)] else "no"

    asked = [request(name, len(flags), group=i) for i, (name, flags) in enumerate(zip("XY", right, strict=True))]
    rows, ctx = rollouts(asked, script, half_solved=[low, high], useful=useful, variants=2, rewritten=2, solutions=3)
    count = [min(2, sum(flags)) if low <= sum(flags) / len(flags) <= high else 0 for flags in right]
    texts = [row for row in rows if "V" in row.text]
    assert [sum(row.uid == r.problem.uid for row in texts) for r in asked] == [2 * n for n in count]
    groups = by_group(rows)
    assert all(len({row.uid for row in own}) == 1 and group % 2 == int(own[0].uid, 16) for group, own in groups.items())
    answers = [own for group, own in groups.items() if group > 1 and "V" not in own[0].text]
    assert len(answers) == len(texts) and all(len(own) == 3 for own in answers)
    for place in (0, 1):
        own = [text for text in texts if text.group % 2 == place]
        shares = [sum(map(bool, (r.correct for r in a))) / 3 for a in answers if a[0].group % 2 == place]
        assert [text.score for text in own] == [float(useful[0] <= share <= useful[1]) for share in shares]
    assert len(ctx.sampler.calls) == (3 if texts else 1)


def test_a_text_whose_answers_nobody_could_judge_is_unscored():
    method = bind("rlvr.rollout", "svs").fn
    text = answered("u", "```text\nV\n```")
    method._pay(text, [answered("u", "x"), answered("u", "y")])
    assert (text.score, text.status) == (None, "verifier_failed")
    method._pay(text, [answered("u", "x"), dataclasses.replace(answered("u", "y"), score=1.0, correct=True)])
    assert text.score == 0.0, "always solved by those that were judged"


def test_marks():
    def find(text):
        return chat.between(text, "```text", "```")

    assert find("x ```text\n 1 + 1? \n``` y ```text\nno\n```") == "1 + 1?"
    assert [find(text) for text in ("1 + 1?", "```text\n1 + 1?", "```text\n\n```", "```1```")] == [None] * 4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.prompting=paraphrase"], "needs prompting: plain"),
        (["rlvr.reward=multirole_r1"], "needs reward: verifier"),
        (["rlvr.reward={kind: verifier, verifier: regex, answer: a}"], "svs scores its rows itself"),
        (["rlvr.rollout.half_solved=[0.5, 0.2]"], "half_solved: the smaller share"),
        (["rlvr.rollout.useful=[0.5]"], "useful"),
        (["rlvr.rollout.template=again"], "template: it has no {answer}"),
        (["rlvr.rollout.question=again"], "question: it has no {problem}"),
        (["rlvr.window=0.5"], "rollout: svs cannot do"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[svs]", *overrides]))


def test_three_kinds_of_rows_train_through_the_loop(tmp_path, start):
    """A letter that a text has twice is the mark of its problem: which one is seen in a step whose mark no text has."""
    spec = "{{kind: svs, half_solved: [0.1, 1], useful: [0, 1], template: 'palindrome {{answer}}', opening: {0}, closing: {0}}}"

    def trainer(folder, mark):
        (tmp_path / folder).mkdir()
        return toys.trainer(
            tmp_path / folder, start, toys.recipe(tmp_path), "presets=[svs]", f"rlvr.rollout={spec.format(mark)}",
            "rlvr.steps=2", "rlvr.prompts=8",
        )  # fmt: skip

    texts = [row.text for row in trainer("first", "'#'").collect(0)[0] if "variant" in row.components]
    mark = next(
        text[i] for text in texts for i in range(len(text) - 2) if text[i].isalpha() and text[i] in text[i + 2 :]
    )
    made = trainer("second", mark)
    before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
    assert made.run()["steps"] == 2
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert torch.isfinite(after).all() and not torch.equal(before, after)
    history = [values for _, values in toys.history(tmp_path / "second/work")]
    assert {"reward_component/variant", "reward_component/variant_answer", "reward_component/verifier"} <= set(
        history[0]
    )
    assert max(values["mismatch/max"] for values in history if "mismatch/max" in values) < 1e-4
    assert history[0]["rollout/rows"] > 32 + len(texts)
