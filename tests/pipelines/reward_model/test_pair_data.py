"""Balanced lengths, random pairs and truncation by confidence: what they keep and add, and with a real stage."""

from __future__ import annotations

import json
import statistics
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from reward_pairs import SETTINGS, recipe

from pipelines.base.errors import DataError, RecipeError
from pipelines.base.files import read_json
from pipelines.data.pair_records import Pair, read_pairs
from pipelines.recipe.check import check
from pipelines.reward_model.kind import TRUNCATE
from pipelines.reward_model.pair_data import FILE, Dynamics, balanced, truncate, with_random
from pipelines.reward_model.pair_settings import RandomPairs, Truncate
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.stage.report import Report
from tasks import keys

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


def counts(lengths, places, width):
    """(bucket of |difference|, sign) → pairs, of those with a difference."""
    differences = [lengths[place][0] - lengths[place][1] for place in places]
    return Counter(((abs(d) + width - 1) // width, d > 0) for d in differences if d)


@given(lengths=LENGTHS, width=st.integers(1, 12), seed=st.integers(0, 5))
def test_balanced_pairs_are_symmetric_in_every_bucket_and_lose_no_more_than_that_takes(lengths, width, seed):
    """Each kept place is one of the data's, once; of each bucket the smaller direction is kept whole, and equal lengths too."""
    before = counts(lengths, range(len(lengths)), width)
    try:
        kept = balanced(lengths, width, seed)
    except DataError:
        assert all(a != b for a, b in lengths) and all(not before[bucket, not sign] for bucket, sign in before)
        return
    after = counts(lengths, kept, width)
    assert kept == sorted(set(kept)) and set(kept) <= set(range(len(lengths)))
    for bucket in {bucket for bucket, _ in before}:
        least = min(before[bucket, True], before[bucket, False])
        assert after[bucket, True] == after[bucket, False] == least
    assert {place for place, (a, b) in enumerate(lengths) if a == b} <= set(kept)
    assert kept == balanced(lengths, width, seed)


def test_what_is_kept_of_the_larger_direction_depends_on_the_seed():
    lengths = [(5, 2)] * 30 + [(2, 5)] * 3
    assert len({tuple(balanced(lengths, 10, seed)) for seed in range(5)}) > 1


PAIRS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.sampled_from("efgh")), min_size=1, max_size=20
)


@given(rows=PAIRS, of=st.sampled_from(["chosen", "both"]), share=st.floats(0.01, 1.0), seed=st.integers(0, 5))
def test_random_pairs_take_the_answer_of_another_prompt(rows, of, share, seed):
    """And depend on the seed alone; the preferred answer is the pair's own, the other is some other pair's chosen one."""
    pairs = [
        Pair(str(number), [{"role": "user", "content": f"prompt {prompt}"}], chosen, rejected, margin=1.0, user="ann")
        for number, (prompt, chosen, rejected) in enumerate(rows)
    ]
    settings = RandomPairs(share=share, of=of)
    try:
        added = with_random(pairs, settings, seed)
    except DataError:
        return
    assert added == with_random(pairs, settings, seed)
    assert len(added) <= max(1, int(len(pairs) * share)) * (2 if of == "both" else 1)
    for pair, place in added:
        source = pairs[place]
        others = {(json.dumps(p.prompt), p.chosen) for p in pairs if p.prompt != source.prompt}
        assert pair.prompt == source.prompt and pair.margin is None and pair.user == "ann"
        assert pair.chosen in ((source.chosen,) if of == "chosen" else (source.chosen, source.rejected))
        assert pair.rejected in {text for _, text in others} and pair.rejected not in (source.chosen, source.rejected)
    uids = [pair.uid for pair, _ in added]
    assert len(set(uids)) == len(uids) and not set(uids) & {pair.uid for pair in pairs}
    if of == "both":
        assert {pair.chosen for pair, _ in added[:2]} == {pairs[added[0][1]].chosen, pairs[added[0][1]].rejected}


def test_random_pairs_of_one_prompt_are_refused():
    pairs = [Pair(str(n), [{"role": "user", "content": "same"}], f"c{n}", f"r{n}") for n in range(4)]
    with pytest.raises(DataError, match="no random pair can be made"):
        with_random(pairs, RandomPairs(share=1.0), 0)


def test_random_pairs_of_parts_of_episodes_are_refused():
    turns = ({"role": "assistant", "content": "a"}, {"role": "user", "content": "b"})
    pairs = [
        Pair(str(n), [{"role": "user", "content": str(n)}], f"c{n}", f"r{n}", chosen_turns=turns) for n in range(4)
    ]
    with pytest.raises(DataError, match=r"parts of episodes \(info\.chosen_turns\)"):
        with_random(pairs, RandomPairs(), 0)


def test_dynamics_leave_the_first_epoch_out(tmp_path):
    """Three pairs, two a step: the second step ends the first epoch in its first row."""
    dynamics = Dynamics(3)
    dynamics.observe(0, [2, 0], torch.tensor([100.0, 100.0]))
    dynamics.observe(2, [1, 0], torch.tensor([100.0, 1.0]))
    dynamics.observe(4, [2, 0], torch.tensor([-2.0, 4.0]))
    dynamics.write(tmp_path / FILE, ["a", "b", "c"])
    rows = {row.pop("uid"): row for row in map(json.loads, (tmp_path / FILE).read_text().splitlines())}
    assert rows == {
        "a": {"confidence": 2.5, "variability": 1.5, "epochs": 2},
        "c": {"confidence": -2.0, "variability": 0.0, "epochs": 1},
    }
    with pytest.raises(DataError, match="within its first epoch"):
        Dynamics(3).write(tmp_path / FILE, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({"at_least": 0}, "acd"),
        ({"at_most": 1}, "abd"),
        ({"at_least": -1, "at_most": 1}, "abd"),
        ({"at_least": 2}, "cd"),
    ],
)
def test_truncation_drops_what_lies_outside_of_the_bounds(tmp_path, bounds, left):
    """A pair that the first stage has not trained on twice (d) stays."""
    told = {"a": 1.0, "b": -1.0, "c": 2.0}
    (tmp_path / FILE).write_text("".join(json.dumps({"uid": u, "confidence": c}) + "\n" for u, c in told.items()))
    pairs = [Pair(uid, [], "x", "y") for uid in "abcd"]
    kept = truncate(pairs, Truncate(by="first", **bounds), tmp_path)
    assert "".join(pairs[place].uid for place in kept) == left
    with pytest.raises(DataError, match="it goes from -1 to 2"):
        truncate(pairs[:3], Truncate(by="first", at_least=3), tmp_path)
    with pytest.raises(DataError, match="first was trained on none of these pairs"):
        truncate([Pair("z", [], "x", "y")], Truncate(by="first", at_least=0), tmp_path)


def test_a_stage_writes_what_another_one_truncates_by(begun, trainer, tmp_path):
    """Confidence is the mean of what the trainer's own steps scored; it is the same after a restart in the middle."""
    changes = {"epochs": 3, "steps": None, "cartography": True, "pairs_per_step": 50}
    first = trainer(tmp_path / "first", **changes)
    observed = []
    observe = first.dynamics.observe
    first.dynamics.observe = lambda *told: (observed.append(told), observe(*told))
    first.run()
    lines = [json.loads(line) for line in (tmp_path / "first/out" / FILE).read_text().splitlines()]
    seen = {}
    for start, indices, difference in observed:
        for place, (index, value) in enumerate(zip(indices, difference.tolist(), strict=True)):
            if start + place >= len(first.pairs):
                seen.setdefault(first.pairs[index].pair.uid, []).append(value)
    assert {line["uid"]: line["epochs"] for line in lines} == {uid: len(values) for uid, values in seen.items()}
    for line in lines:
        assert line["confidence"] == pytest.approx(statistics.mean(seen[line["uid"]]))
    middle = statistics.median(line["confidence"] for line in lines)
    settings = SETTINGS | {"pairs": {"truncate": {"by": "first", "at_most": middle}}}
    second = Trainer(
        RewardModel.model_validate(settings), first.model_settings, data=begun / "data", out=tmp_path / "out",
        work=tmp_path, report=Report(tmp_path / "w"), seed=3, start=first.origin,
        inputs={TRUNCATE: tmp_path / "first/out"},
    )  # fmt: skip
    surest = {line["uid"] for line in lines if line["confidence"] > middle}
    assert {p.pair.uid for p in second.pairs} == {p.uid for p in read_pairs(begun / "data", "train")} - surest


@pytest.mark.slow
def test_dynamics_survive_a_restart(trainer, tmp_path):
    changes = {"epochs": 3, "steps": None, "cartography": True, "pairs_per_step": 50, "commit": {"every": 2}}
    trainer(tmp_path / "whole", **changes).run()
    stopped = trainer(tmp_path / "stopped", **changes)
    make, limit = stopped.make_step, 7

    def failing(step):
        if step == limit:
            raise KeyboardInterrupt
        return make(step)

    stopped.make_step = failing
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    trainer(tmp_path / "stopped", **changes).run()
    assert (tmp_path / "whole/out" / FILE).read_bytes() == (tmp_path / "stopped/out" / FILE).read_bytes()


def test_a_stage_learns_from_balanced_and_random_pairs(begun, trainer, tmp_path):
    """The held-out pairs stay as they are."""
    plain = trainer(tmp_path / "plain")
    changed = trainer(tmp_path / "changed", pairs={"balance": 1, "random": {"share": 0.5}})
    lengths = [pair.lengths for pair in changed.pairs]
    after = counts(lengths, range(len(lengths)), 1)
    before = counts([p.lengths for p in plain.pairs], range(len(plain.pairs)), 1)
    assert any(before[size, True] != before[size, False] for size, _ in before)
    assert all(after[size, True] == after[size, False] for size, _ in after)
    known = {pair.uid for pair in read_pairs(begun / "data", "train")}
    assert {pair.pair.uid.split("/random")[0] for pair in changed.pairs} <= known
    assert any(pair.pair.uid not in known for pair in changed.pairs)
    assert [pair.pair for pair in changed.heldout] == [pair.pair for pair in plain.heldout]
    changed.run()
    about = read_json(tmp_path / "changed/out/report/reward_model.json")
    assert about["random pairs"] == len(plain.pairs) // 2
    assert about["pairs"] + about["pairs dropped for balance"] == len(plain.pairs) + about["random pairs"]


FIRST = {"kind": "reward_model", "data": "pairs", "model": "cold", **SETTINGS}
BY_FIRST = {"pairs": {"truncate": {"by": "first", "at_least": 0.0}}}


def test_the_stage_that_truncates_reads_the_other_one(tmp_path):
    """Its name is in no key."""
    read = recipe(tmp_path, stages={"first": FIRST | {"cartography": True}}, **BY_FIRST)
    check(read)
    node = read.node("judge")
    assert node.inputs == {"data": "pairs", "model": "cold", TRUNCATE: "first"}
    digests = dict.fromkeys(node.inputs, "d")
    key = keys.key_parts(read, "judge", digests)
    renamed = {"pairs": {"truncate": {"by": "other", "at_least": 0.0}}}
    other = recipe(tmp_path, stages={"other": FIRST | {"cartography": True}}, **renamed)
    assert keys.key_parts(other, "judge", digests) == key
    changed = {"pairs": {"truncate": {"by": "other", "at_least": 0.5}}}
    another = recipe(tmp_path, stages={"other": FIRST | {"cartography": True}}, **changed)
    assert keys.key_parts(another, "judge", digests) != key


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({}, r"judge\.pairs\.truncate\.by: first writes no training dynamics"),
        (
            {"cartography": True, "split": "heldout", "heldout": None},
            r"judge\.pairs\.truncate\.by: first is trained on other pairs",
        ),
        ({"kind": "sft", "data": "data", "steps": 1}, "first makes model, and reward_model is wanted"),
    ],
)
def test_what_cannot_be_truncated_by_is_refused(tmp_path, first, words):
    fields = first if first.get("kind") == "sft" else FIRST | first
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, stages={"first": fields}, **BY_FIRST))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pairs": {"truncate": {"by": "first"}}}, "drops nothing without"),
        ({"pairs": {"truncate": {"by": "first", "at_least": 2, "at_most": 1}}}, "at_least must not be over at_most"),
        ({"cartography": True, "epochs": 1, "steps": None}, "train for more than one"),
        ({"cartography": True, "step_labels": {}}, "step_labels reads no pairs"),
        ({"pairs": {"balance": 10}, "step_labels": {}}, "step_labels reads no pairs"),
        ({"pairs": {"random": {"share": 0}}}, "greater than 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        RewardModel.model_validate(SETTINGS | fields)
