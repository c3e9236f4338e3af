"""Answers of a model as `whetstone chat` draws them, and comparisons as `whetstone compare` makes them."""

from __future__ import annotations

import json

import exported
import homes
import pytest

from flows.cli import main
from pipelines.engine.chat_model import ChatModel
from tasks.export import trained
from whetstone_rlvr import UserError, compare, find_run, sample

FIRST, SECOND = "a1" * 16, "b2" * 16


def test_answers_are_those_of_the_model(home):
    exported.run()
    model = trained.find("mine")
    speaker = ChatModel(str(model.folder), model.settings)
    prompts = ["abc", "xyz", [{"role": "user", "content": "q 1"}]]
    greedy = sample("mine", prompts, temperature=0, max_tokens=6)
    system = [{"role": "system", "content": exported.SYSTEM}]
    conversations = [[*system, {"role": "user", "content": text}] for text in ("abc", "xyz", "q 1")]
    expected = [text for text, _ in speaker.reply(conversations, temperature=0, max_tokens=6)]
    assert greedy["text"].tolist() == expected and greedy["prompt"].tolist() == prompts
    assert greedy["tokens"].between(1, 6).all()
    for name in (find_run("mine"), exported.RUN[:8], "mine/short", model.folder, model.artifact.name):
        assert sample(name, prompts, temperature=0, max_tokens=6).equals(greedy)
    bare = sample("mine", "abc", temperature=0, max_tokens=6, system="")
    assert bare["text"].tolist() != expected[:1], "no system message"


def test_draws_follow_the_seed(home):
    exported.run()
    drawn = sample("mine", ["abc", "abc", "xyz"], n=3, max_tokens=6, seed=3)
    assert drawn["sample"].tolist() == [0, 1, 2] * 3 and len({*drawn["text"][:3]}) > 1
    assert drawn["text"][:3].tolist() == drawn["text"][3:6].tolist(), (
        "what a prompt's draws are depends on nothing beside it"
    )
    assert drawn.equals(sample("mine", ["abc", "abc", "xyz"], n=3, max_tokens=6, seed=3))
    assert not drawn.equals(sample("mine", ["abc", "abc", "xyz"], n=3, max_tokens=6, seed=4))
    assert sample("mine", [], n=3).empty


def test_a_model_that_no_run_made(home, tmp_path):
    exported.run()
    folder = trained.find("mine").folder
    folder.rename(tmp_path / "alone")
    assert len(sample(tmp_path / "alone", "abc", max_tokens=4)) == 1


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("mine", {"temperature": -1}, "temperature: "),
        ("mine", {"top_p": 2}, "top_p: "),
        ("mine", {"max_tokens": 0}, "max_tokens: "),
        ("mine/shrt", {}, "Did you mean 'short'?"),
        ("nobody", {}, "no run, model or experiment of this name is known here"),
    ],
)
def test_what_cannot_be_sampled(home, model, options, words):
    exported.run()
    with pytest.raises(UserError) as error:
        sample(model, "abc", **options)
    assert words in str(error.value) and "--" not in str(error.value)


def arms():
    """Two finished runs."""
    homes.run(FIRST, {"rlvr": {"sums": [[0, 1], [0, 0], [1, 1], [0, 0]] * 5}}, name="first")
    homes.run(SECOND, {"rlvr": {"sums": [[1, 1], [1, 0], [1, 1], [1, 1]] * 5}}, name="second", advantage="rloo")


def test_a_comparison_is_that_of_the_command(home, capsys):
    arms()
    frame = compare(find_run("first"), SECOND[:8])
    with pytest.raises(SystemExit):
        main.main(["compare", FIRST, SECOND, "--json"])
    body = json.loads(capsys.readouterr().out)
    tests = body["benchmarks"]["sums"]["tests"]
    shared = ("metric", "low", "high", "p", "p_holm", "verdict", "n", "detectable", "test")
    assert [{k: row[k] for k in shared} for row in frame.to_dict("records")] == [
        {k: t[k] for k in shared} for t in tests
    ]
    assert frame["metric"].tolist() == ["pass@1", "pass@2"] and frame["difference"][0] == pytest.approx(0.875 - 0.375)
    assert (frame["old_score"][0], frame["new_score"][0]) == (0.375, 0.875)
    assert frame["old"].tolist() == [FIRST[:8]] * 2 and frame["verdict"][0] == "better"
    swapped = compare(SECOND, FIRST, confidence=0.9)
    assert swapped["difference"].tolist() == [-d for d in frame["difference"]]
    assert swapped["high"][0] - swapped["low"][0] < frame["high"][0] - frame["low"][0]


@pytest.mark.parametrize(
    ("names", "options"),
    [((FIRST,), {}), ((FIRST, FIRST), {}), ((FIRST, "nobody"), {}), ((FIRST, SECOND), {"confidence": 2})],
)
def test_what_cannot_be_compared(home, names, options):
    arms()
    with pytest.raises(UserError):
        compare(*names, **options)
