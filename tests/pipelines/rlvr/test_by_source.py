"""Settings that differ by source: what is refused, how large groups are, and whole runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import ranks
import torch
import toys
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.columns import task_number
from pipelines.contract.rollout import Allocation
from pipelines.data.dataset import read_split
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm, by_source, gold_answers

WORDS, PALINDROMES = "spell_backward", "palindrome_generation"
FORM = {"kind": "verifier", "name": "form", "verifier": "regex", "answer": "a.*"}


def source(task, size=40, **more):
    return {"kind": "reasoning_gym", "task": task, "size": size, **more}


def recipe(folder, **rlvr):
    """The toy recipe with two sources."""
    body = {"sources": [source(WORDS), source(PALINDROMES)], "splits": {"train": 0.9, "heldout": 0.1}}
    fields = {"steps": 2, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8}}
    return toys.recipe(folder, curate=body, rlvr=fields | rlvr)


@pytest.mark.parametrize(
    ("rlvr", "problem"),
    [
        ({"by_source": {"gsm8k": {}}}, f"rlvr.by_source: train has no records of a source 'gsm8k'. Known: {PALINDROMES}, {WORDS}"),
        ({"by_source": {"spell": {}}}, "Did you mean 'spell_backward'?"),
        ({"by_source": {WORDS: {"temperature": 1}}}, "temperature: no such field. Known: divergence, group_size, max_tokens,"),
        ({"by_source": {WORDS: {"group_size": 1}}}, f"by_source.{WORDS}.group_size: grpo compares the rollouts of a group"),
        ({"by_source": {WORDS: {"group_size": 100}}, "prompts": 2**16}, "prompts * group_size is 6553600 rollouts a step"),
        ({"by_source": {WORDS: {"group_size": 2}}, "shaping": "laser_d"}, "laser_d are for groups of one size"),
        ({"by_source": {WORDS: {"rollout": "multi_turn"}}}, f"by_source.{WORDS}.rollout: multi_turn plays episodes"),
        ({"by_source": {WORDS: {"rollout": "stored"}}}, "stored reads stored completions"),
        ({"by_source": {WORDS: {"rollout": {"kind": "herl", "judge": {"model": "m"}}}}}, "rollout.judge: models, judges and fields"),
        ({"by_source": {WORDS: {"rollout": {"kind": "tree"}}}, "advantage": "tree_grpo"}, "tree_grpo reads node"),
        ({"by_source": {WORDS: {"max_tokens": 9}}, "window": 4}, "by_source: a window counts rows in groups of one size"),
        ({"by_source": {WORDS: {"objective": "clipp"}}}, f"by_source.{WORDS}.objective: no method called 'clipp'"),
        ({"by_source": {WORDS: {"objective": {"kind": "clip", "hihg": 1}}}}, f"by_source.{WORDS}.objective.hihg: no such setting"),
        ({"by_source": {WORDS: {"objective": "clip_cov"}}}, f"by_source.{WORDS}.objective: clip_cov compares all rows of an update"),
        ({"by_source": {WORDS: {"objective": "clip"}}, "objective": "clip_cov"}, "rlvr.objective: clip_cov compares all rows of an update"),
        ({"by_source": {WORDS: {"objective": "hpt_upge"}}}, "hpt_upge has denominators of its own"),
        ({"by_source": {WORDS: {"divergence": {"kind": "k1"}}}}, "k1 in the loss gives an incorrect gradient"),
        ({"by_source": {WORDS: {"divergence": {"kind": "k1", "where": "reward"}}}, "divergence": "k3"}, "in reward and loss"),
        ({"by_source": {WORDS: {"divergence": "adaptive_k1"}}}, "adaptive_k1 works with all rows of a step"),
        ({"by_source": {WORDS: {"objective": "gspo"}}, "credit": ["truncated_is"]}, "gspo's ratio belongs to the whole sequence"),
        ({"reward": ["verifier", FORM | {"sources": ["gsm8k"]}]}, "reward.terms.1.sources: train has no records"),
        ({"reward": [{"kind": "verifier", "sources": [WORDS]}]}, f"no term pays prompts of the source '{PALINDROMES}'"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, rlvr, problem):
    with pytest.raises(RecipeError) as caught:
        check(read_recipe(recipe(tmp_path, **rlvr)))
    assert problem in str(caught.value)


def mixed(seed, sources=("a", "b", "c")):
    """A random step whose groups come from several sources."""
    batch = toys.rough(seed)
    return toys.columns_of(batch) | {
        "task": torch.tensor([task_number(sources[g % len(sources)]) for g in batch.group.tolist()])
    }


def said(columns, seed):
    """What a policy that has moved says of the tokens."""
    draw = torch.Generator().manual_seed(seed)
    logp = columns["logp_old"] + 0.4 * torch.randn(columns["mask"].shape, generator=draw)
    return torch.stack([logp, logp.exp()], -1).requires_grad_()


LOOSE, CHARGED = {"kind": "clip", "low": 0.5, "high": 0.9}, {"kind": "k3", "weight": 0.3}


@pytest.mark.parametrize(
    ("stage", "own"),
    [
        ({}, {"a": {"objective": LOOSE}}),
        ({"objective": "reinforce"}, {"a": {"objective": LOOSE}, "b": {"objective": "gspo"}}),
        ({"divergence": CHARGED}, {"a": {"divergence": CHARGED | {"weight": 0}}, "b": {"divergence": "k2", "objective": "cispo"}}),
        ({"loss_aggregation": "row_mean"}, {"c": {"divergence": CHARGED, "objective": LOOSE}, "none": {"divergence": "k2"}}),
    ],
    ids=["a clip range", "an objective", "a weight", "a divergence of one"],
)  # fmt: skip
@settings(max_examples=10)
@given(seed=st.integers(0, 100))
def test_each_source_has_the_loss_of_its_own_rows_alone(stage, own, seed):
    """Token by token and to the bit, with the weights that one aggregation over the whole update gives its tokens; slices add up."""
    update, columns = algorithm.Update.of(Rlvr(**stage, by_source=own)), mixed(seed)
    columns = algorithm.weigh(update, algorithm.assign_credit(update, columns))
    plain = algorithm.Update.of(Rlvr(**stage))
    assert torch.equal(columns["weight"], algorithm.weigh(plain, columns)["weight"]), "sources share one denominator"
    policy, total = said(columns, seed), 0.0
    whole = algorithm.loss(update, columns, policy)
    [gradient] = torch.autograd.grad(whole, policy)
    for name in "abc":
        rows = (columns["task"] == task_number(name)).nonzero().squeeze(1)
        alone = algorithm.Update.of(Rlvr(**stage | own.get(name, {})))
        part = policy.detach()[rows].requires_grad_()
        loss = algorithm.loss(alone, algorithm.take(columns, rows), part)
        assert torch.equal(torch.autograd.grad(loss, part)[0], gradient[rows])
        total += float(loss.detach())
    assert total == pytest.approx(float(whole.detach()), rel=1e-5, abs=1e-6)


def test_two_clip_ranges_by_hand():
    """Three rows of one token each with a ratio of 2 and an advantage of 1: the source `a` may go to 1.5, the others to 1.2."""
    fn = algorithm.Update.of(Rlvr(by_source={"a": {"objective": {"kind": "clip", "high": 0.5}}})).objective
    one, task = torch.ones(3, 1), torch.tensor([task_number("a"), task_number("b"), task_number("a")])
    found = fn({"task": task, "logp": one * 0.6931472, "logp_old": one * 0, "advantage": one})
    assert found.squeeze(1).tolist() == pytest.approx([-1.5, -1.2, -1.5])


def test_a_source_is_charged_its_own_divergence_in_the_reward():
    """0.3 (logp - logp_ref) of each of its tokens, and the stage's 0.1 of the others'."""
    k1 = {"kind": "k1", "where": "reward"}
    rlvr = Rlvr(
        divergence=k1 | {"weight": 0.1}, by_source={"a": {"divergence": k1 | {"weight": 0.3}}}, advantage="reinforce_pp"
    )
    before = mixed(0)
    after = algorithm.assign_credit(algorithm.Update.of(rlvr), before)
    weight = torch.where(before["task"] == task_number("a"), 0.3, 0.1)[:, None]
    expected = weight * (before["logp_old"] - before["logp_ref"]) * before["mask"]
    torch.testing.assert_close(after["token_penalty"], expected)


@pytest.mark.slow
def test_a_run_with_two_objectives_trains_and_a_restart_changes_no_byte(tmp_path):
    """Several updates a step, so the ratios leave 1 and the ranges tell."""
    own = {WORDS: {"objective": {"kind": "clip", "low": 0.9, "high": 5.0}}, PALINDROMES: {"divergence": CHARGED}}
    more = [
        f"rlvr.by_source={json.dumps(own)}",
        "rlvr.steps=3",
        "rlvr.epochs=3",
        "rlvr.optimizer.learning_rate=0.01",
        "rlvr.commit.every=1",
    ]
    begun = toys.start(tmp_path, of := recipe(tmp_path), ["sft.steps=2"])
    works = [tmp_path / name for name in ("whole", "again", "plain")]
    for work in works:
        work.mkdir()
    toys.trainer(works[0], begun, of, *more).run()
    toys.run_stopped(lambda: toys.trainer(works[1], begun, of, *more))
    toys.trainer(works[2], begun, of, *more[1:]).run()
    results = [toys.result(work / "work") for work in works]
    assert results[0] == results[1] and results[0][0] != results[2][0]


def lake(folder, **rlvr):
    """Palindromes and a small lake; moves are episodes of two turns."""
    body = yaml.safe_load(recipe(folder).read_text())
    config = body["model"]["fresh"]["config"] | {"max_position_embeddings": 256}
    way = {"kind": "environment", "task": "frozen_lake", "size": 40, "config": {"side": 3}}
    own = {"frozen_lake": {"rollout": {"kind": "multi_turn", "max_turns": 2}, "max_tokens": 4, "group_size": 2}}
    fields = {
        "steps": 3,
        "prompts": 4,
        "group_size": 4,
        "sampling": {"max_tokens": 8},
        "by_source": own,
        "commit": {"every": 1},
    }
    return toys.recipe(
        folder,
        model=body["model"] | {"fresh": body["model"]["fresh"] | {"config": config}},
        curate={
            "sources": [source(PALINDROMES), way],
            "near_duplicates": None,
            "splits": {"train": 0.8, "heldout": 0.2},
        },
        sft={"steps": 2, "max_length": 200, "tokens_per_step": 1000, "micro_batch_tokens": 1000},
        rlvr=fields | {"advantage": "gigpo"} | rlvr,
        evaluate={"tasks": [{"name": "palindromes", "limit": 2}]},
    )


def test_episodes_and_answers_beside_each_other_are_accepted_with_what_reads_both(tmp_path):
    check(read_recipe(lake(tmp_path)))
    turns = {"kind": "gtpo_turn", "penalty": 0.5}
    with pytest.raises(
        RecipeError, match="gtpo_turn reads the turns of episodes, and some sources have single answers"
    ):
        check(read_recipe(lake(tmp_path, reward=["verifier", turns])))
    check(read_recipe(lake(tmp_path, reward=["verifier", turns | {"sources": ["frozen_lake"]}])))
    with pytest.raises(RecipeError, match=r"rlvr\.rollout: single_turn asks for single answers"):
        check(read_recipe(lake(tmp_path, advantage="grpo", by_source={"frozen_lake": {"group_size": 2}})))


SIZES = st.dictionaries(st.sampled_from("abc"), st.integers(2, 16) | st.none())


@given(SIZES, st.integers(2, 16), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=8))
def test_groups_have_their_source_s_size(sizes, group_size, drawn):
    """In the ratio of what the curriculum gave them to the stage's size; all as proposed where no source has another one."""
    problems = [type("Problem", (), {"source": name}) for name, _ in drawn]
    rlvr = Rlvr(group_size=group_size, by_source={name: {"group_size": size} for name, size in sizes.items()})
    allocations = [Allocation(i, times * group_size, 0.5) for i, (_, times) in enumerate(drawn)]
    scaled = by_source.sized(allocations, problems, rlvr)
    assert [each.rollouts for each in scaled] == [times * (sizes.get(name) or group_size) for name, times in drawn]
    assert [(each.problem, each.propensity) for each in scaled] == [(i, 0.5) for i in range(len(drawn))]
    one = by_source.sized([Allocation(i, 1) for i in range(len(drawn))], problems, rlvr)
    assert all(each.rollouts >= 1 for each in one)


def test_sources_are_those_of_the_data(tmp_path, start):
    problems = read_split(start / "data", "train")
    with pytest.raises(DataError, match=f"no record of train is of the source 'rows.jsonl'. Known: {PALINDROMES}"):
        by_source.require(problems, Rlvr(by_source={"rows.jsonl": {}}))
    with pytest.raises(DataError, match=f"no term pays prompts of the source '{PALINDROMES}'"):
        by_source.require([*problems, _of("x", problems[0])], Rlvr(reward=[{"kind": "verifier", "sources": ["x"]}]))


def _of(name, problem, **more):
    return replace(problem, source=name, **more)


def test_only_sources_that_the_verifier_pays_need_answers(start):
    problem = read_split(start / "data", "train")[0]
    without = _of("chat", problem, verifier="exact", answer="")
    gold_answers.require(
        [problem, without], Rlvr(reward=[{"kind": "verifier", "sources": [problem.source]}]).reward, "train"
    )
    with pytest.raises(DataError, match="1 of 2 records of train have no answer"):
        gold_answers.require([problem, without], Rlvr(reward=["verifier"]).reward, "train")


def test_the_stage_s_own_settings_named_for_a_source_change_no_byte(tmp_path, start):
    same = "{max_tokens: 8, group_size: 4, rollout: single_turn}"
    for name, more in {"plain": [], "named": [f"rlvr.by_source={{{PALINDROMES}: {same}}}"]}.items():
        (tmp_path / name).mkdir()
        toys.trainer(tmp_path / name, start, toys.recipe(tmp_path / name), "rlvr.steps=2", *more).run()
    assert toys.result(tmp_path / "plain/work") == toys.result(tmp_path / "named/work")


@pytest.mark.slow
def test_a_killed_run_on_episodes_and_answers_ends_with_the_same_bytes(tmp_path):
    """Groups of two sizes, two rollouts and limits, a term for one source; killed in its second step. Two ranks draw the same."""
    more = {"reward": ["verifier", FORM | {"verifier": "regex", "weight": 0.5, "sources": [PALINDROMES]}], "steps": 4}
    (tmp_path / "begun").mkdir()
    of = lake(tmp_path, **more)
    begun = toys.start(tmp_path / "begun", of, [])
    read = read_recipe(of)
    works = [tmp_path / name for name in ("whole", "killed", "ranks")]
    for work in works:
        (work / "out").mkdir(parents=True)
        body = {
            "stage": "rlvr", "seed": 0, "threads": 1,
            "settings": {"rlvr": read.rlvr.model_dump(), "model": read.model.model_dump()},
            "inputs": {"data": str(begun / "data"), "model": str(begun / "sft/out")},
        }  # fmt: skip
        body["settings"]["rlvr"]["processes"] = 2 if work.name == "ranks" else 1
        (work / "job.json").write_text(json.dumps(body))
    ranks.finish_alone(works[0])
    ranks.kill_alone(works[1])
    ranks.finish_alone(works[1])
    assert toys.result(works[0]) == toys.result(works[1])
    for _, values in toys.history(works[0]):
        assert not toys.unlisted_metrics(read.rlvr, values)
        share = values["source/frozen_lake/share"]
        assert 0 <= share <= 1 and share + values[f"source/{PALINDROMES}/share"] == pytest.approx(1)
        assert ("source/frozen_lake/length_mean" in values) == (share > 0)
    drawn = [json.loads(line) for line in (works[0] / "out/report/draws.jsonl").read_text().splitlines()]
    sizes = {len(rewards) for entry in drawn for rewards in entry["rewards"].values()}
    assert sizes == {2, 4}, drawn[0]
    ranks.run_stages("pipelines.rlvr", works[2:], 2)
    assert json.loads((works[2] / "out/report/draws.jsonl").read_text().splitlines()[0]) == drawn[0]
    for one, two in zip(ranks.handed_on(works[0]).values(), ranks.handed_on(works[2]).values(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
