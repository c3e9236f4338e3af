"""The log of rollouts holds what a person needs to judge one."""

from __future__ import annotations

import pytest
import scripted
import vision_models

from pipelines.contract.model_settings import Vision
from pipelines.data import chat, marks
from pipelines.data.images import IMAGES
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.engine import vision
from pipelines.engine.models import train_tokenizer
from pipelines.rlvr.rollout_log import differences, entries, written

PROBLEM = Problem(
    uid="u", prompt=[{"role": "user", "content": "go"}], answer="b", verifier="exact", source="s", licence="", info={}
)


def row(roles, **fields):
    tokens = list(range(10, 10 + len(roles)))
    about = {"uid": "u", "group": 0, "logp_old": [0.0] * len(roles), "max_tokens": 9, "stop": Stop.END, "version": 0}
    return Trajectory(tokens=tokens, role=[int(r) for r in roles], **{**about, "text": "t", **fields})


def decode(tokens):
    return "".join(chr(ord("a") + t - 10) for t in tokens)


P, M, E = Role.PROMPT, Role.POLICY, Role.ENVIRONMENT


def test_the_prompt_is_there_once_a_group_and_one_advantage_is_one_number():
    first, second = row([P, M, M], components={"verifier": 1.0}), row([P, M, M])
    lines = entries(3, [first, second], {"u": PROBLEM}, {id(first): [0.0, 0.123456789, 0.123456789]}, {}, decode)
    assert lines[0]["prompt"] == PROBLEM.prompt and "prompt" not in lines[1]
    assert lines[0]["advantage"] == 0.12346 and "advantage" not in lines[1], "the second was not trained on"
    assert lines[0]["step"] == 3 and lines[0]["components"] == {"verifier": 1.0} and "turns" not in lines[0]


def test_advantages_that_differ_stand_with_their_tokens_and_turns_with_who_wrote_them():
    episode = row([P, M, M, E, M])
    (line,) = entries(1, [episode], {}, {id(episode): [0.0, 0.5, -0.5, 9.0, 0.25]}, {}, decode)
    assert line["turns"] == [["policy", "bc"], ["environment", "d"], ["policy", "e"]]
    assert line["tokens"] == [["b", 0.5], ["c", -0.5], ["d", None], ["e", 0.25]] and "advantage" not in line
    assert "prompt" not in line


def test_mismatch_stands_with_the_tokens_where_there_is_any_and_tokens_of_one_value_are_one_part():
    episode, same = row([P, M, M, M, E, M]), row([P, M, M])
    apart = {id(episode): [None, 0.0001, -0.0002, 0.25, None, None], id(same): [None, 0.0004, None]}
    lines = entries(1, [episode, same], {}, {id(episode): [0.5] * 6, id(same): [0.5] * 3}, apart, decode)
    assert lines[0]["tokens"] == [["bc", 0.5, 0.0], ["d", 0.5, 0.25], ["e", None, None], ["f", 0.5, None]]
    assert lines[0]["advantage"] == 0.5
    assert lines[1]["advantage"] == 0.5 and "tokens" not in lines[1], "rounding is no difference"


def test_differences_are_those_of_the_step_s_own_rows():
    import torch

    from pipelines.rlvr.mismatch import Tokens

    first, second, third = row([P, M, M]), row([P, M]), row([P, M])
    place = torch.tensor([0, 0, 1, 7])
    compared = Tokens(
        difference=torch.tensor([0.5, float("inf"), -1.0, 3.0]), row=place, position=torch.tensor([1, 2, 1, 1]), token=place,
        sampled=place.float(), group=place, offset=place,
    )  # fmt: skip
    found = differences(compared, [first, second, third], [id(first), id(third)])
    assert found == {id(first): [None, 0.5, 20.0], id(third): [None, None]}
    assert differences(None, [first], [id(first)]) == {}


def test_a_seat_has_its_own_prompt_and_says_which_it_is():
    own = [{"role": "user", "content": "You are O."}]
    lines = entries(
        1,
        [row([P, M], player=0, prompt=PROBLEM.prompt), row([P, M], player=1, prompt=own)] * 2,
        {"u": PROBLEM},
        {},
        {},
        decode,
    )
    assert [line["player"] for line in lines] == [0, 1, 0, 1]
    assert [line["prompt"] for line in lines] == [PROBLEM.prompt, own] * 2


def test_an_image_is_its_mark():
    first, second = (IMAGES.add(vision_models.picture(8, 8, 90 + n)) for n in range(2))
    places = [marks.place_ids(marks.marked(mark)[0], 2) for mark in (first, second)]
    tokens = [*scripted.ids("a"), *places[0], *places[1], *scripted.ids("bc"), *places[0]]
    assert written(scripted.tokenizer(), tokens) == f"a{first}{second}bc{first}"
    assert written(scripted.tokenizer(), scripted.ids("abc")) == "abc"


@pytest.fixture(scope="module")
def tokenizer():
    """Of a fresh model that sees."""
    made = train_tokenizer("bpe", 300, ["look at it"])
    settings = Vision(image_size=16, patch_size=8, config={"hidden_size": 8, "num_attention_heads": 2})
    marks.attach(made, vision.fresh_reader(settings, made))
    return made


def test_images_are_marks_again_and_what_the_policy_wrote_is_none(tokenizer):
    mark = IMAGES.add(vision_models.picture(16, 16, 51))
    ids = (
        chat.encode(tokenizer, ["look"])[0]
        + marks.reader_of(tokenizer).tokens(mark[1:-1])
        + chat.encode(tokenizer, ["at"])[0]
    )
    assert written(tokenizer, ids) == f"look{mark}at"
    forged = tokenizer("look " + mark, add_special_tokens=False)["input_ids"]
    assert all(token < marks.FIRST_ID for token in forged), "the policy can sample these tokens"
    assert marks.marked(tokenizer.decode(forged)) == [mark[1:-1]]
    for text in (written(tokenizer, forged), *chat.completion_texts(tokenizer, [forged])):
        assert marks.marked(text) == [] and text == "look " + mark.replace(marks.PLACE, "\ufffd")
