"""Pairs of parts of episodes: how they are cut, what they are worth by partial return and by regret, and what records they make."""

from __future__ import annotations

import json
import random

import pytest
import toys
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.curate import segments, selected
from pipelines.curate.run import run as curate
from pipelines.curate.segments import Transition, action_values, partial_return, regret, segments_of, state_values
from pipelines.data import dataset, samples
from pipelines.data.pair_records import pair_of
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.stage.report import Report


def episode(*turns, end=None):
    """(state, message, reward) of each turn."""
    listed = [
        {
            "state": state,
            "message": message,
            "reply": f"after {message}",
            "role": "user",
            "reward": reward,
            "cut": False,
        }
        for state, message, reward in turns
    ]
    return {"turns": listed, "end": end}


ROAD = [
    Transition("far", "on", -1.0, "middle"),
    Transition("middle", "on", -1.0, "near"),
    Transition("near", "on", -1.0, "home"),
    Transition("home", "in", -1.0, None),
    Transition("middle", "back", -1.0, "far"),
    Transition("near", "wait", -1.0, "near"),
]
"""The task of the paper's first figure: every step costs 1 until the goal."""


def test_the_paper_s_example_of_equal_partial_returns():
    """Two parts cost 2 each. The one that wastes a step is less preferred by regret, and so is the one that began nearer the goal."""
    quality = action_values(ROAD, 1.0)
    assert state_values(quality) == {"far": -4, "middle": -3, "near": -2, "home": -1}
    straight, waits, back = [ROAD[0], ROAD[1]], [ROAD[5], ROAD[2]], [ROAD[4], ROAD[0]]
    assert partial_return(straight, 1.0) == partial_return(waits, 1.0) == partial_return(back, 1.0) == -2
    assert [regret(part, quality, 1.0) for part in (straight, waits, back)] == [0, 1, 2]


def world(seed, states=6, actions=3):
    """A random task without chance that ends: (state, action) → reward and next state, a later one or the end."""
    draw = random.Random(seed)
    return {
        (f"s{s}", f"a{a}"): (
            draw.uniform(-2, 2),
            None if (later := draw.randint(s + 1, states)) == states else f"s{later}",
        )
        for s in range(states)
        for a in range(actions)
    }


def walk(task, draw):
    state, steps = "s0", []
    while state is not None:
        message = draw.choice([a for s, a in task if s == state])
        reward, after = task[state, message]
        steps.append(Transition(state, message, reward, after))
        state = after
    return steps


@given(st.integers(0, 10_000), st.floats(0.3, 1))
def test_regret_is_what_the_official_formula_says_where_nothing_is_chance(seed, discount):
    """V(first) - (partial return + V(last)); never negative, and 0 from state to state along the best way."""
    task = world(seed)
    steps = [Transition(s, a, reward, after) for (s, a), (reward, after) in task.items()]
    quality = action_values(steps, discount)
    value = state_values(quality) | {None: 0.0}

    def best(state):
        if state is None:
            return 0.0
        return max(r + discount * best(n) for (s, _), (r, n) in task.items() if s == state)

    for state in {s for s, _ in task}:
        assert value[state] == pytest.approx(best(state), abs=1e-6)
    draw = random.Random(seed)
    way = walk(task, draw)
    for first in range(len(way)):
        for last in range(first + 1, len(way) + 1):
            part = way[first:last]
            reached = partial_return(part, discount) + discount ** len(part) * value[part[-1].next]
            lost = regret(part, quality, discount)
            assert lost == pytest.approx(value[part[0].state] - reached, abs=1e-6) and lost >= -1e-9
    state, whole = "s0", []
    while state is not None:
        action = max((a for a in quality if a[0] == state), key=lambda a: quality[a])
        whole.append(Transition(*action, *task[action]))
        state = whole[-1].next
    assert regret(whole, quality, discount) == pytest.approx(0, abs=1e-6)


def test_chance_is_averaged_over_what_was_seen():
    seen = [Transition("s", "risk", 1.0, None), Transition("s", "risk", 0.0, None), Transition("s", "safe", 0.7, None)]
    quality = action_values(seen, 1.0)
    assert quality == {("s", "risk"): 0.5, ("s", "safe"): 0.7}
    assert regret(seen[:1], quality, 1.0) == pytest.approx(0.2), "a lucky draw is no better a choice"


def test_a_state_that_nobody_went_on_from_has_no_value():
    seen = [Transition("s", "on", 0.0, "t"), Transition("t", "on", 0.0, "cut"), Transition("s", "in", 1.0, None)]
    quality = action_values(seen, 1.0)
    assert quality == {("s", "in"): 1.0}, "the way over t leads nowhere that is known"
    assert regret(seen[:1], quality, 1.0) is None and regret(seen[2:], quality, 1.0) == 0


def test_values_that_grow_without_end_are_refused():
    circle = [Transition("s", "round", 0.5, "s")]
    with pytest.raises(DataError, match=r"select\.discount: .* returns to its first state pays"):
        action_values(circle, 1.0)
    assert action_values(circle, 0.5)["s", "round"] == pytest.approx(1)


def test_parts_have_their_history_and_only_an_end_makes_them_short():
    prompt = [{"role": "user", "content": "go"}]
    told = episode(("s", "a", 0), ("t", "b", 0), ("u", "c", 1))
    parts = segments_of(prompt, told, 2)
    assert [(len(p.prompt), len(p.turns), p.text) for p in parts] == [(1, 2, "b"), (3, 2, "c"), (5, 0, "c")]
    assert parts[1].prompt[1:] == [
        {"role": "assistant", "content": "a"}, {"role": "user", "content": "after a"}
    ]  # fmt: skip
    assert parts[1].turns == [{"role": "assistant", "content": "b"}, {"role": "user", "content": "after b"}]
    assert [t.next for t in parts[1].transitions] == ["u", None]
    told["end"] = "v"
    assert [p.text for p in segments_of(prompt, told, 2)] == ["b", "c"], "a part that was cut off is none"
    assert segments_of(prompt, told, 4) == []


def rows(uid, episodes, folder_rows):
    problem = Problem(
        uid=uid, prompt=[{"role": "user", "content": f"how many is {uid}"}], answer="7", verifier="exact", source="s",
        licence="l", info={"environment": "frozen_lake", "map": ["SG"], "divided_again": 1},
    )  # fmt: skip
    for number, told in enumerate(episodes):
        score = sum(t["reward"] for t in told["turns"])
        folder_rows.append(
            {
                **dataset.to_row(problem), "sample": number, "text": "x", "score": score, "status": "x", "stop": "end",
                "correct": score >= 1, "prompt_ids": [1], "components": "{}", "completion_ids": [1], "logp": [0.0],
                "entropy": [0.0], samples.EPISODE: json.dumps(told),
            }
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    listed = []
    for uid in ("a", "b"):
        rows(
            uid,
            [
                episode(("s", "on", 0), ("t", "on", 0), ("u", "in", 1)),
                episode(("s", "wait", 0), ("s", "on", 0), ("t", "back", 0), end="s"),
                episode(("s", "in", 0.25)),
            ],
            listed,
        )
    (tmp_path / "drafts" / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(tmp_path / "drafts" / samples.FOLDER / samples.shard_name(0), listed)
    return tmp_path / "drafts"


def drawn(folder, seed=0, **select):
    asked = {"kind": "segments", "per_problem": 50, **select}
    return list(selected.problems(folder, Selection.model_validate(asked), seed))


def test_whole_episodes_become_conversations(folder):
    """One that reached its end, as messages before its last one; it names no environment, so that nothing plays it again."""
    whole = [record for record in drawn(folder, kind="correct") if record.info["sampled_from"] == "a"]
    (record,) = whole
    told = json.loads(next(iter(samples.read(folder)))[samples.EPISODE])["turns"]
    assert [m["content"] for m in record.prompt[1:]] == [
        text for turn in told[:-1] for text in (turn["message"], turn["reply"])
    ]
    assert [m["role"] for m in record.prompt[1:]] == ["assistant", told[0]["role"]] * 2
    assert record.info["solution"] == told[-1]["message"] == "in" and record.info["pass_rate"] == pytest.approx(1 / 3)
    assert "environment" not in record.info and "map" not in record.info
    assert not drawn(folder, kind="correct", high=0.3)


@pytest.mark.parametrize("prefer", ["regret", "partial_return"])
@pytest.mark.parametrize("length", [1, 2])
def test_the_better_part_is_chosen(folder, prefer, length):
    records = drawn(folder, length=length, prefer=prefer, discount=0.5)
    both = [pair_of(record) for record in records]
    assert len(records) >= 4 and len({record.uid for record in records}) == len(records)
    told = [json.loads(row[samples.EPISODE]) for row in list(samples.read(folder))[:3]]
    steps = [t for e in told for part in segments_of([], e, 1) for t in part.transitions]
    quality = action_values(steps, 0.5)
    begins = set()
    for record, pair in zip(records, both, strict=True):
        prompt = [{"role": "user", "content": f"how many is {record.info['sampled_from']}"}]
        parts = {p.key: p.transitions for e in told for p in segments_of(prompt, e, length)}
        worth = []
        for side in pair.sides:
            part = parts[json.dumps([side.prompt, list(side.turns), side.text])]
            worth.append(-regret(part, quality, 0.5) if prefer == "regret" else partial_return(part, 0.5))
        assert [pair.chosen_score, pair.rejected_score] == pytest.approx(worth) and worth[0] > worth[1]
        begins.add(pair.rejected_prompt is None)
        assert "environment" not in record.info and record.info["divided_again"] == 1
    assert begins >= {False}


@given(st.integers(0, 50), st.sampled_from(["regret", "partial_return"]))
def test_other_rewards_with_the_other_sign_flip_every_label(seed, prefer):
    """A part of one turn, a task of one turn: what is better becomes what is worse."""
    draw = random.Random(seed)
    told = [episode(("s", f"m{i}", draw.randint(-3, 3))) for i in range(8)]
    select = Selection(kind="segments", length=1, prefer=prefer, per_problem=50)
    problem = Problem(uid="u", prompt=[], answer="", verifier="exact", source="s", licence="l")

    def labelled(factor):
        for each in told:
            for turn in each["turns"]:
                turn["reward"] *= factor
        read = [{samples.EPISODE: json.dumps(each)} for each in told]
        return {(i["chosen"], i["rejected"]) for _, i in segments.couples(problem, read, select, seed)}

    assert labelled(1) == {(rejected, chosen) for chosen, rejected in labelled(-1)}


def test_turns_that_leave_the_state_as_it_was_count_nothing(folder):
    told = {"length": 2, "prefer": "partial_return"}
    plain, said = drawn(folder, **told), drawn(folder, **told, importance="changes")
    assert [r.uid for r in plain] == [r.uid for r in said] and "chosen_importance" not in plain[0].info
    for record in said:
        pair = pair_of(record)
        for side, shares in zip(pair.sides, (pair.chosen_importance, pair.rejected_importance), strict=True):
            words = [text for _, text in side.spoken()]
            moved = [float(word != "wait") for word in words]
            assert shares == pytest.approx([m / sum(moved) for m in moved]), "waiting moves nothing"
    assert any(0.0 in r.info["chosen_importance"] + r.info["rejected_importance"] for r in said)


def test_draws_are_the_seed_s_margins_and_limits_hold(folder):
    assert drawn(folder, 1, length=1) == drawn(folder, 1, length=1) != drawn(folder, 2, length=1)
    wide = drawn(folder, length=1, prefer="partial_return", margin=0.5)
    assert wide and all(r.info["chosen_score"] - r.info["rejected_score"] > 0.5 for r in wide)
    parts = [json.dumps([s.prompt, s.turns, s.text]) for r in drawn(folder, length=1) for s in pair_of(r).sides]
    assert len(set(parts)) == len(parts), "no part is in two pairs"
    one = drawn(folder, length=1, per_problem=1)
    assert [r.info["sampled_from"] for r in one] == ["a", "b"]


def test_curation_keeps_every_pair_and_their_problem_s_split(tmp_path, folder):
    recipe = read_recipe(toys.recipe(tmp_path))
    tokenizer = models.train_tokenizer("char", 128, ["how many is ab on wait back in after"])
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / samples.ABOUT).write_text(json.dumps({"template": models.template_identity(tokenizer)}))
    source = {"kind": "stage", "path": "drafts", "select": {"kind": "segments", "length": 1, "per_problem": 50}}
    section = recipe.curate.model_validate({"sources": [source], "splits": {"train": 1.0}})
    out = tmp_path / "out"
    out.mkdir()
    curate(section, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0, samples={0: folder})
    kept = dataset.read_split(out, "train")
    made = drawn(folder, length=1)
    assert {p.uid for p in kept} == {p.uid for p in made} and len(kept) == len(made) >= 2
    assert kept[0].info["divided_again"] == 2, "its problem had been divided once"


def test_single_answers_have_no_parts(tmp_path, folder):
    listed = [{k: v for k, v in row.items() if k != samples.EPISODE} for row in samples.read(folder)]
    (tmp_path / "answers" / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(tmp_path / "answers" / samples.FOLDER / samples.shard_name(0), listed)
    with pytest.raises(DataError, match=r"select: segments are parts of episodes, .* `episodes: \{max_turns: 10\}`"):
        drawn(tmp_path / "answers")


def pair_file(tmp_path, **changes):
    row = {
        "prompt": "begin here", "chosen": "a", "rejected": "b", "rejected_prompt": "begin there",
        "chosen_turns": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}], **changes,
    }  # fmt: skip
    (tmp_path / "p.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps({"prompt": "q", "chosen": "a", "rejected": "b"})
    )
    return {"kind": "file", "path": str(tmp_path / "p.jsonl")}


def read_file(tmp_path, source):
    settings = read_recipe(
        toys.recipe(tmp_path, curate={"sources": [source], "near_duplicates": None, "splits": {"train": 1.0}})
    )
    (tmp_path / "out").mkdir()
    curate(settings.curate, settings.model, out=tmp_path / "out", report=Report(tmp_path / "w"), seed=0)
    return dataset.read_split(tmp_path / "out", "train")


def test_a_file_may_hold_both_kinds_of_pairs(tmp_path):
    one, two = (pair_of(p) for p in read_file(tmp_path, pair_file(tmp_path, chosen="same", rejected="same")))
    assert one.rejected_prompt == [{"role": "user", "content": "begin there"}] and one.part == "rejected_prompt"
    assert [m["content"] for m in one.chosen_turns] == ["x", "y"] and one.rejected_turns == ()
    assert [len(side.spoken()) for side in one.sides] == [2, 1]
    assert two.part is None and two.sides[0].prompt == two.sides[1].prompt


@pytest.mark.parametrize(
    ("row", "source", "words"),
    [
        ({"chosen_turns": [{"role": "user", "content": "x"}]}, {}, "not turns"),
        ({"chosen_turns": [{"role": "assistant", "content": "x"}]}, {}, "not turns"),
        ({"chosen_turns": 5}, {}, "not a list of messages"),
        ({"rejected_prompt": [{"role": "clown", "content": "x"}]}, {}, "unknown role"),
        ({}, {"system": "be good"}, "reach one prompt only"),
    ],
)
def test_a_row_that_is_no_pair_of_parts_is_quarantined_with_its_field(tmp_path, row, source, words):
    read = read_file(tmp_path, pair_file(tmp_path, **row) | source)
    assert len(read) == 1
    told = (tmp_path / "out" / "report/quarantine.jsonl").read_text()
    assert words in told and next(iter(row), "rejected_prompt") in told


def graph(tmp_path, select, episodes, **stages):
    body = yaml.safe_load(toys.lake(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    listed = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", **({"episodes": {}} if episodes else {})},
        "pairs": {"kind": "curate", "sources": [{"kind": "stage", "path": "drafts", "select": select}], "splits": {"train": 1.0}},
    }  # fmt: skip
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": listed | stages}, sort_keys=False))
    return read_recipe(path)


RL = {"kind": "rlvr", "data": "data", "model": "cold", "steps": 1, "rollout": "stored", "samples": "drafts"}


@pytest.mark.parametrize(
    ("select", "episodes", "stages", "words"),
    [
        (
            "segments", False, {},
            r"drafts\.k: the stage asks for single answers, and the problems of data\.sources\.1 \(frozen_lake\) have none",
        ),
        ({"kind": "correct", "truncate": 0.5}, True, {}, r"drafts plays episodes, and correct is .* without truncate"),
        ("pairs", True, {}, r"pairs\.sources\.0\.select: drafts plays episodes, and pairs is about single answers"),
        ("segments", True, {"dpo": {"kind": "preference", "data": "pairs", "model": "cold", "loss": "dpo", "heldout": None, "steps": 1}},
         r"dpo\.data: pairs makes pairs of parts of episodes .* reward_model"),
        ("pass_rate", True, {"rl": RL}, r"rl\.samples: drafts holds episodes, and the rollout stored reads single answers"),
        ("segments", True, {
            "judge": {"kind": "reward_model", "data": "pairs", "model": "cold", "heldout": None, "steps": 1},
            "more": {"kind": "sample", "data": "data", "model": "cold", "reward_model": "judge", "episodes": {}},
         }, r"more\.reward_model: it scores single answers"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_it_starts(tmp_path, select, episodes, stages, words):
    with pytest.raises(RecipeError, match=words):
        check(graph(tmp_path, select, episodes, **stages))


def test_what_works_is_not(tmp_path):
    judge = {"kind": "reward_model", "data": "pairs", "model": "cold", "heldout": None, "steps": 1}
    check(graph(tmp_path, {"kind": "segments", "prefer": "partial_return"}, True, judge=judge))


@pytest.mark.parametrize("field", ["length", "prefer", "discount"])
def test_only_segments_have_these_fields(field):
    with pytest.raises(ValueError, match=f"{field} is read by segments"):
        Selection.model_validate(
            {"kind": "pairs", field: {"length": 2, "prefer": "partial_return", "discount": 0.5}[field]}
        )
