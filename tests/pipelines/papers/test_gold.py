"""GOLD: which tokens of two splits belong together, and what a teacher of another vocabulary says of an answer."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data import chat, control
from pipelines.engine import models
from pipelines.papers.gold import LEAST, aligned_groups, alike, token_ends

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


def filled(tmp_path, start, provider, preset="gold_sampled"):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), f"presets=[{preset}]", f"rlvr.providers=[{provider}]")
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


def test_with_one_vocabulary_every_token_is_a_group_and_has_the_teacher_s_distribution(tmp_path, start):
    made, columns = filled(
        tmp_path, start, f"{{kind: aligned_teacher_top, path: {start}/sft/out/base, top: 5}}", "gold"
    )
    model = models.load_model(f"{start}/sft/out/base", made.model_settings).eval()
    assert columns["teacher_top_id"].shape[2] == 5 == int(columns["shared_names"][0]), (
        "no token is one vocabulary's alone"
    )
    checked = 0
    for row, mask in enumerate(columns["mask"]):
        own = columns["teacher_group"][row][mask]
        if own.tolist() != list(range(len(own))):
            continue  # a special token within, or one that its text is read back as
        with torch.no_grad():
            logits = model(columns["token"][row][None]).logits[0].log_softmax(-1)
        best = logits[:-1][mask[1:]].topk(5)
        torch.testing.assert_close(columns["logp_teacher_top"][row][mask], best.values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            columns["logp_teacher_top"][row][mask],
            logits[:-1][mask[1:]].gather(1, columns["teacher_top_id"][row][mask]),
            atol=1e-4,
            rtol=1e-4,
        )
        checked += 1
    assert checked > len(columns["mask"]) / 2
    assert (columns["teacher_group"][~columns["mask"]] == -1).all()


def test_of_another_vocabulary_a_group_s_last_token_is_compared_with_the_teacher_s_last(tmp_path, start, other):
    """Byte pairs of the teacher's are several of the policy's characters, so groups have several tokens on one side."""
    made, columns = filled(tmp_path, start, f"{{kind: aligned_teacher_top, path: {other}, top: 9, ranked: 3}}", "gold")
    scorer = made.learner.scorer
    own, theirs = scorer.tokenizer(), scorer.tokenizer(str(other))
    pairs = alike(own, theirs)
    part = made.learner.providers["aligned_teacher_top"]
    model = models.load_model(other, made.model_settings.model_copy(update={"path": str(other), "fresh": None})).eval()
    assert columns["shared_vocabulary"][0] == pytest.approx(len(pairs) / model.config.vocab_size)
    merged = 0
    for row in range(4):
        mask = columns["mask"][row]
        answer = columns["token"][row][mask].tolist()
        text = control.decode_text(own, answer)
        read = control.encode_text(theirs, text)
        ends = token_ends(answer, own, text, {}), token_ends(read, theirs, text, {})
        if answer[-1] in chat.end_ids(own):
            read.append(chat.end_ids(theirs)[0])
            ends[1].append(len(text))
        problem = next(p for p in made.problems if int(p.uid[:15], 16) == int(columns["problem"][row]))
        [prompt] = chat.render_prompts(theirs, [problem.prompt])
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *read]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        for number, (mine, other_places) in enumerate(aligned_groups(*ends)):
            places = [int(mask.nonzero()[place]) for place in mine]
            assert {int(columns["teacher_group"][row, place]) for place in places} == {number}
            before = sum(max(LEAST, float(logits[place, read[place]])) for place in other_places[:-1])
            merged += len(mine) > 1 or len(other_places) > 1
            ids, values = columns["teacher_top_id"][row, places[-1]], columns["logp_teacher_top"][row, places[-1]]
            expected = {pairs[token]: float(logits[other_places[-1], token]) + before for token in pairs}
            for token, value in zip(ids[: part.names].tolist(), values[: part.names].tolist(), strict=True):
                assert value == pytest.approx(expected[token], abs=1e-3, rel=1e-4)
            assert not set(ids[part.names :].tolist()) & set(pairs.values()), "the others are the policy's alone"
    assert merged


def test_tokens_are_alike_by_their_names_and_ends_whatever_they_are_called(other):
    own, theirs = models.train_tokenizer("char", 64, ["ab"]), models.train_tokenizer("bpe", 300, ["ab ba"])
    pairs = alike(own, theirs)
    assert pairs and all(
        own.convert_ids_to_tokens(mine) == theirs.convert_ids_to_tokens(token)
        for token, mine in pairs.items()
        if token not in chat.end_ids(theirs)
    )
    assert pairs[chat.end_ids(theirs)[0]] == chat.end_ids(own)[0]


def test_ranks_are_those_of_the_present_policy():
    """Its own tokens were kept in the order of their probabilities before the step's updates, which may have changed since."""
    part = bind("rlvr.auxiliary_loss", {"kind": "aligned_divergence", "named": 0.0, "ranked": 1.0})
    columns = {
        "logp": torch.zeros(1, 1), "logp_top": torch.tensor([[[0.1, 0.2, 0.6]]]).log(),
        "logp_teacher_top": torch.tensor([[[0.5, 0.3, 0.2]]]).log(), "teacher_group": torch.zeros(1, 1).long(),
        "shared_names": torch.tensor([0]), "shared_vocabulary": torch.tensor([0.0]), "mask": torch.ones(1, 1).bool(),
    }  # fmt: skip
    assert float(part(columns)) == pytest.approx(0.1 + 0.1 + 0.1)


def test_it_keeps_some_token():
    with pytest.raises(RecipeError, match="keeps no token"):
        bind("rlvr.providers", {"kind": "aligned_teacher_top", "path": "x", "top": 0, "ranked": 0})
