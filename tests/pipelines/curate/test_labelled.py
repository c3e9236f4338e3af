"""Records with labelled steps: of labelled completions, of episodes (mean returns of turns), and of files."""

from __future__ import annotations

import json

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError
from pipelines.curate import labelled, selected
from pipelines.curate.mapping import to_problem
from pipelines.curate.segments import Transition
from pipelines.curate.values import RowError
from pipelines.data import samples
from pipelines.data.step_records import steps_of
from pipelines.recipe.selection import Selection
from pipelines.recipe.settings import Source

PROMPT = [{"role": "user", "content": "go"}]


def test_the_sheet_s_targets():
    """Three visits with the outcomes 1, 0, 1, two turns before the end."""
    episodes = [
        [Transition("s", "a", 0.0, "t"), Transition("t", f"{n}", 0.0, "u"), Transition("u", f"{n}", reward, None)]
        for n, reward in enumerate((1.0, 0.0, 1.0))
    ]
    targets = labelled.action_targets(episodes, 0.95)
    assert targets["s", "a"] == pytest.approx(0.601667, abs=1e-6) and targets["t", "0"] == pytest.approx(0.95)
    assert targets["u", "1"] == 0 and targets["u", "2"] == 1


@given(st.lists(st.lists(st.tuples(st.sampled_from("st"), st.sampled_from("ab"), st.floats(0, 1)), max_size=4), max_size=4),
       st.sampled_from([1.0, 0.5]))  # fmt: skip
def test_targets_are_means_over_all_visits_in_any_order(drawn, discount):
    episodes = [[Transition(s, a, r, None) for s, a, r in episode] for episode in drawn]
    targets = labelled.action_targets(episodes, discount)
    visits: dict = {}
    for episode in episodes:
        for place, each in enumerate(episode):
            total = sum(discount**n * later.reward for n, later in enumerate(episode[place:]))
            visits.setdefault(each.action, []).append(total)
    assert targets == {action: pytest.approx(sum(values) / len(values)) for action, values in visits.items()}
    turned = labelled.action_targets(episodes[::-1], discount)
    assert turned == {action: pytest.approx(value) for action, value in targets.items()}


def row(number, place, **fields):
    return {
        "uid": f"{number:032x}", "prompt": json.dumps(PROMPT), "answer": "4", "verifier": "number", "source": "s", "licence": "l",
        "info": json.dumps({"environment": "x", "level": 3}), "text": "x", "sample": place, "components": "{}", "stop": "end",
        "status": "correct", "prompt_ids": [1], "completion_ids": [2], "logp": [0.0], "score": 1.0, "correct": True, **fields,
    }  # fmt: skip


def write(folder, rows):
    (folder / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(0), rows)
    return folder


def told(*steps):
    return json.dumps([{"text": text, "correct": correct, "drawn": drawn} for text, correct, drawn in steps])


def test_a_labelled_completion_is_a_record(tmp_path):
    folder = write(tmp_path, [
        row(0, 0, text="a;b", steps=told(("a;", 3, 4), ("b", 1, 1))),
        row(0, 1, text="a;b", steps=told(("a;", 3, 4), ("b", 1, 1))),
        row(0, 2, text="c", steps=told(("c", 0, 0)), stop="length", score=0.0, correct=False),
        row(0, 3, text="", steps=None, score=0.0, correct=False),
        row(0, 4, text="d", steps=told(("d", 0, 1)), score=None, correct=None),
    ])  # fmt: skip
    records = list(selected.problems(folder, Selection(kind="steps", per_problem=9), 0))
    answers = [steps_of(record) for record in records]
    assert [(a.steps, a.labels, a.cut) for a in answers] == [(("a;", "b"), (0.75, 1.0), False), (("c",), (None,), True)]
    assert len({record.uid for record in records}) == 2 and all(r.info["sampled_from"] == f"{0:032x}" for r in records)
    assert all(r.info["pass_rate"] == 0.5 for r in records)
    assert len(list(selected.problems(folder, Selection(kind="steps"), 0))) == 1


def episode(*turns, end=None):
    listed = [
        {"state": s, "message": m, "reply": f"after {m}", "role": "user", "reward": r, "cut": False}
        for s, m, r in turns
    ]
    return json.dumps({"turns": listed, "end": end})


def test_a_turn_of_an_episode_is_a_record_with_the_mean_return_after_it(tmp_path):
    """One record of each conversation and message; what was reached by different ways shares its target."""
    folder = write(tmp_path, [
        row(0, 0, episode=episode(("s", "on", 0.0), ("t", "in", 1.0))),
        row(0, 1, episode=episode(("s", "on", 0.0), ("t", "out", 0.0))),
        row(0, 2, episode=episode(("s", "by", 0.0), ("t", "in", 1.0)), score=0.0, correct=False),
    ])  # fmt: skip
    records = list(selected.problems(folder, Selection(kind="steps", per_problem=9, discount=0.5), 0))
    shown = {(tuple(m["content"] for m in r.prompt), *r.info["steps"], *r.info["step_labels"]) for r in records}
    assert shown == {
        (("go",), "on", 0.25), (("go",), "by", 0.5), (("go", "on", "after on"), "in", 1.0),
        (("go", "on", "after on"), "out", 0.0), (("go", "by", "after by"), "in", 1.0),
    }  # fmt: skip
    assert all("environment" not in r.info for r in records) and len({r.uid for r in records}) == 5
    few = list(selected.problems(folder, Selection(kind="steps", per_problem=2, discount=0.5), 0))
    assert [r.uid for r in few] == [r.uid for r in records[:2]]
    assert [r.uid for r in selected.problems(folder, Selection(kind="steps", per_problem=9, discount=0.5), 7)] != [
        r.uid for r in records
    ]


def test_a_return_that_is_no_share_is_refused(tmp_path):
    folder = write(tmp_path, [row(0, 0, episode=episode(("s", "on", 1.0), ("t", "in", 1.0)))])
    with pytest.raises(DataError, match=r"the mean return of 'on' .* is 2, and a label is from 0 to 1"):
        list(selected.problems(folder, Selection(kind="steps"), 0))


def read(row):
    return to_problem(row, Source(kind="file", path="x"), self_check=True)


def test_trl_s_columns_are_read():
    record = read({"prompt": "q", "completions": ["a", "b\r\n"], "labels": [True, False]})
    assert steps_of(record).labels == (1.0, 0.0) and record.info["steps"] == ["a", "b"] and record.verifier == "exact"
    other = read({"prompt": "q", "completions": ["a", "c"], "labels": [0.25, None]})
    assert steps_of(other).labels == (0.25, None) and other.uid != record.uid
    assert other.info["sampled_from"] == record.info["sampled_from"]


@pytest.mark.parametrize(("columns", "words"), [
    ({"completions": ["a"], "labels": [1, 0]}, "labels: not a label for each step"),
    ({"completions": "a", "labels": [1]}, "labels: not a label for each step"),
    ({"completions": ["a", " "], "labels": [1, 0]}, "completions: a step without text .step 2"),
    ({"completions": ["a"], "labels": [-1]}, "labels: not from 0 .incorrect. to 1"),
    ({"completions": ["a"], "labels": ["+"]}, "labels: not from 0 .incorrect. to 1"),
])  # fmt: skip
def test_a_damaged_row_names_its_column(columns, words):
    with pytest.raises(RowError, match=words):
        read({"prompt": "q", **columns})
