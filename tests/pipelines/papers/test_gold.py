"""GOLD: which tokens of two splits belong together, and what a teacher of another vocabulary says of an answer."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data import chat, control
from pipelines.engine import models
from pipelines.papers.gold import aligned_groups, token_ends

cuts = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(cuts, cuts)
def test_groups_hold_the_same_text_of_both_splits(first, second):
    """Whatever the widths; both splits end at the same character."""
    total = max(sum(first), sum(second)) + 1
    ends = [[sum(widths[: n + 1]) for n in range(len(widths))] + [total] for widths in (first, second)]
    groups = aligned_groups(*ends)
    for side, own in enumerate(ends):
        assert [place for group in groups for place in group[side]] == list(range(len(own))), (
            "each token once, in order"
        )
    for left, right in groups:
        assert ends[0][left[-1]] == ends[1][right[-1]], "a group ends where both do"
        inside = {ends[0][n] for n in left[:-1]} & {ends[1][n] for n in right[:-1]}
        assert not inside, "and nowhere before, but for tokens without text"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A teacher with a byte-level vocabulary and a template of its own."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    tokenizer = models.train_tokenizer("bpe", 300, ["palindrome abc cba abab"] * 3)
    models.save_model(toys.model(vocab=len(tokenizer)), tokenizer, folder, {})
    return folder


@given(st.text(max_size=12))
def test_token_ends_never_fall_and_reach_the_end(text):
    tokenizer = models.train_tokenizer("bpe", 300, ["ab ba"])
    ids = control.encode_text(tokenizer, text)
    ends = token_ends(ids, tokenizer, text, {})
    assert ends == sorted(ends) and (not ids or ends[-1] == len(text))
    for place, end in enumerate(ends):
        assert control.decode_text(tokenizer, ids[: place + 1]).startswith(text[:end])


def filled(tmp_path, start, provider):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[gold]", f"rlvr.providers=[{provider}]")
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    return made, columns


def test_of_one_vocabulary_it_is_the_teacher(tmp_path, start):
    made, columns = filled(tmp_path, start, f"{{kind: aligned_teacher, path: {start}/sft/out/base}}")
    expected = dict(columns)
    (tmp_path / "b").mkdir()
    plain = toys.trainer(
        tmp_path / "b", start, toys.recipe(tmp_path), "presets=[on_policy_distillation]",
        f"rlvr.providers=[{{kind: teacher, path: {start}/sft/out/base}}]",
    )  # fmt: skip
    plain.learner.fill(expected["token"], expected)
    own = made.learner.scorer.tokenizer()
    alike = 0
    for row, mask in enumerate(columns["mask"]):
        answer = columns["token"][row][mask].tolist()
        if control.encode_text(own, control.decode_text(own, answer)) in (
            answer,
            answer[:-1],
        ):  # no special token within
            alike += 1
            torch.testing.assert_close(
                columns["logp_teacher"][row][mask], expected["logp_teacher"][row][mask], atol=2e-4, rtol=0
            )
    assert alike > len(columns["mask"]) / 2
    assert made.learner.providers["aligned_teacher"].update(columns["token"], columns) == {
        "aligned_teacher/aligned": 1.0
    }


def test_an_answer_is_as_likely_as_its_text_to_a_teacher_of_another_vocabulary(tmp_path, start, other):
    made, columns = filled(tmp_path, start, f"{{kind: aligned_teacher, path: {other}}}")
    scorer = made.learner.scorer
    own, theirs = scorer.tokenizer(), scorer.tokenizer(str(other))
    model = models.load_model(other, made.model_settings.model_copy(update={"path": str(other), "fresh": None})).eval()
    for row in (0, 5, len(columns["group"]) - 1):
        mask = columns["mask"][row]
        answer = columns["token"][row][mask].tolist()
        problem = next(p for p in made.problems if int(p.uid[:15], 16) == int(columns["problem"][row]))
        [prompt] = chat.render_prompts(theirs, [problem.prompt])
        read = control.encode_text(theirs, control.decode_text(own, answer))
        if answer[-1] == own.eos_token_id:
            read.append(
                theirs.convert_tokens_to_ids(chat.end_of_turn(theirs))
                if chat.end_of_turn(theirs)
                else theirs.eos_token_id
            )
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *read]])).logits[0].log_softmax(-1)
        expected = logits[len(prompt) - 1 : -1].gather(1, torch.tensor(read)[:, None]).sum()
        torch.testing.assert_close(columns["logp_teacher"][row][mask].sum(), expected, atol=1e-3, rtol=1e-4)
    assert (columns["logp_teacher"] != columns["logp_old"])[columns["mask"]].any()
