"""Rollouts with turns and branches: exact tokens, every choice trained once, the sampler's numbers kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import scripted
import torch
import toys

from pipelines import verifiers
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data import chat
from pipelines.data.records import Role, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

TURNS = ("rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.sampling.max_tokens=6")
BRANCHES = (
    "rlvr.rollout={kind: arpo, start: 2, max_turns: 3, base: 0.6}",
    "rlvr.sampling.max_tokens=6",
    "rlvr.group_size=6",
)


TREES = (
    "rlvr.rollout={kind: turn_tree, trees: 2, expansions: 2, rounds: 2, max_turns: 3}",
    "rlvr.sampling.max_tokens=6",
)


@pytest.mark.slow
def test_a_conversation_is_what_the_template_would_write(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *TURNS)
    rows, _ = made.collect(0)
    assert len(rows) == 16
    seen = set()
    for row in rows:
        seen.add(row.stop)
        problem = made.by_uid[row.uid]
        turns = len(row.turn_reward)
        assert len(row.turn_state) == turns == max(row.turn) + 1 <= 3
        assert all((role == Role.POLICY) == (turn >= 0) for role, turn in zip(row.role, row.turn, strict=True))
        assert row.score == sum(row.turn_reward)
        if not all(text in ("left", "right", "up", "down") for text in row.text.split(" | ")):
            continue
        from pipelines.environments.frozen_lake import World

        world, messages = World(), list(problem.prompt)
        world.reset(problem)
        for text in row.text.split(" | "):
            messages.append({"role": "assistant", "content": text})
            step = world.step(text)
            if not step.done:
                messages.append({"role": "user", "content": step.observation})
        assert row.tokens == chat.render_prompt(made.tokenizer, messages)[: len(row.tokens)]
        assert (row.stop == Stop.ENVIRONMENT) == step.done
    assert Stop.TURNS in seen


@pytest.mark.parametrize(
    "more",
    [
        [*TURNS],
        [*TURNS, "presets=[gigpo]", "rlvr.rollout={kind: multi_turn, max_turns: 3}"],
        [*TURNS, "presets=[trloo]"],
        [*TURNS, "presets=[seeupo]", "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.mini_batches=2", "rlvr.group_size=8"],
        [*TURNS, "presets=[era]", "rlvr.rollout={kind: multi_turn, max_turns: 3}"],
        [
            *TURNS, "presets=[archer]", "rlvr.rollout={kind: multi_turn, max_turns: 3}",
            "rlvr.providers=[{kind: archer, epochs: 2, batch: 8, warm_up: 1}]",
        ],
        [
            *TURNS, "presets=[digirl]", "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.replay.share=0.5",
            "rlvr.advantage.threshold=-0.3",
            "rlvr.providers=[{kind: digirl, epochs: 2, batch: 8, warm_up: 1}]",
        ],
        [
            *TURNS, "presets=[f_dvl_turns]", "rlvr.rollout={kind: multi_turn, max_turns: 3}",
            "rlvr.providers=[{kind: f_dvl, divergence: reverse_kl, n_steps: 2, epochs: 2, batch: 8, warm_up: 1}]",
        ],
        [*TURNS, "presets=[spa]", "rlvr.rollout={kind: multi_turn, max_turns: 3}"],
        [*TURNS, "presets=[rebel]", "rlvr.rollout.max_turns=3", "rlvr.advantage.target_success=0.9"],
        [*TURNS, "presets=[activevln]", "rlvr.rollout={kind: multi_turn, max_turns: 3, tolerance: 1.5, regenerate: 1}"],
        [*BRANCHES, "presets=[arpo]", "rlvr.group_size=10"],
        [*TURNS, "presets=[epo]"],
        [*TURNS, "rlvr.advantage=trloo", "rlvr.objective=turn_clip", "rlvr.mini_batches=2", "rlvr.group_size=8"],
        [*TURNS, "rlvr.shaping=[{kind: g_ra}]", "rlvr.advantage=gae", "rlvr.providers=[{kind: critic, learning_rate: 0.001}]"],
        [*BRANCHES, "rlvr.credit=[{kind: arpo_hard}]"],
        ["presets=[tree_grpo]", *TREES],
    ],
    ids=[
        "plain", "gigpo", "trloo", "seeupo", "era", "archer", "digirl", "f_dvl_turns", "spa", "rebel", "activevln", "arpo", "epo",
        "trloo_turn_clip", "gated_gae", "arpo_hard", "tree_grpo",
    ],
)  # fmt: skip
@pytest.mark.few(8)
@pytest.mark.slow
def test_turns_train(tmp_path, lake, more):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *more)
    before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
    made.run()
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert torch.isfinite(after).all() and not torch.equal(before, after)
    values = [b["values"] for b in toys.spool(tmp_path / "work") if b["kind"] == "metrics"]
    checked = [v["mismatch/max"] for v in values if "mismatch/max" in v]
    assert len(values) == 3 and checked and max(checked) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("critics", ["archer", "digirl", "iql"])
def test_critics_of_turns_and_their_episodes_survive_a_stop(tmp_path, lake, critics):
    """The store is in the commit, and so are targets and replayed rows; the second step draws from both steps' episodes."""
    results = []
    for name, run in (
        ("whole", lambda build: build().run()),
        ("stopped", lambda build: toys.run_stopped(build, step=2)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        providers = f"rlvr.providers=[{{kind: {critics}, learning_rate: 0.001, epochs: 2, batch: 6, warm_up: 1}}]"
        more = (*TURNS, f"presets=[{critics}]", TURNS[0], providers, "rlvr.commit.every=1")
        run(lambda folder=folder, more=more: toys.trainer(folder, lake, toys.lake(folder), *more))
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]
    assert results[0][1][-1][1][f"{'step_values' if critics == 'iql' else critics}/episodes"] == 48


@pytest.mark.slow
def test_a_progress_model_resumes_to_the_same_bytes_and_turns_say_whether_they_were_actions(tmp_path, lake):
    more = [
        *TURNS,
        "presets=[spa]",
        "rlvr.rollout={kind: multi_turn, max_turns: 3}",
        "rlvr.sampling.temperature=1.5",
        "rlvr.group_size=8",
    ]
    for first in ("true", "false"):
        learner = f"{{kind: progress, learning_rate: 0.01, update_first: {first}}}"
        providers = f"rlvr.providers=[{learner}, {{kind: critic, at: turns, discount: 1.0, lam: 0.95}}]"
        results = []
        for name in ("whole", "halves"):
            folder = tmp_path / first / name
            folder.mkdir(parents=True)

            def build(folder=folder, providers=providers):
                return toys.trainer(folder, lake, toys.lake(folder), *more, providers)

            if name == "whole":
                build().run()
            else:
                toys.run_stopped(build)
            results.append(toys.result(folder / "work"))
        assert results[0] == results[1]
        steps = [values for _, values in results[0][1]]
        assert all("progress/loss" in values for values in steps)
        assert steps[0]["progress/loss"] == pytest.approx(steps[0]["reward/mean"]), (
            "its first sums are 0, scores are 0 or 1"
        )
    rows, _ = build().collect(0)
    words = {"left", "down", "right", "up"}
    said = [
        (turn.strip().lower() in words, bool(valid))
        for row in rows
        for turn, valid in zip(row.text.split(" | "), row.turn_valid, strict=True)
    ]
    assert {True, False} == {valid for _, valid in said}
    assert all(word or not valid for word, valid in said), "what is no word of a move cannot be executed"


def test_branches_share_what_came_before_and_part_afterwards(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *BRANCHES)
    rows, _ = made.collect(0)
    by_group: dict[int, list] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    assert all(len(group) == 6 for group in by_group.values())
    shared = 0
    for group in by_group.values():
        for i, one in enumerate(group):
            for other in group[i + 1 :]:
                common = {n for n in one.node if n >= 0} & {n for n in other.node if n >= 0}
                for node in common:
                    mine = [(t, p) for t, p, n in zip(one.tokens, one.logp_old, one.node, strict=True) if n == node]
                    assert mine == [
                        (t, p) for t, p, n in zip(other.tokens, other.logp_old, other.node, strict=True) if n == node
                    ]
                    shared += 1
    assert shared > 0


def test_turn_trees_have_their_size_and_shared_turns_are_the_same_tokens(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), "presets=[tree_grpo]", *TREES)
    rows, _ = made.collect(0)
    groups: dict[int, list] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    assert len(groups) == 4 and all(len(group) == 2 * (1 + 2 * 2) for group in groups.values())
    expanded = 0
    for group in groups.values():
        turns: dict[int, tuple] = {}
        for row in group:
            assert row.stop in (Stop.ENVIRONMENT, Stop.TURNS) and len(row.turn_state) <= 3
            assert row.score == sum(row.turn_reward)
            for node in {n for n in row.node if n >= 0}:
                place = row.node.index(node)
                turn = [(t, p) for t, p, n in zip(row.tokens, row.logp_old, row.node, strict=True) if n == node]
                before = tuple(row.tokens[:place])
                assert turns.setdefault(node, (turn, before)) == (turn, before), "a turn has one past"
        first = [next(n for n in row.node if n >= 0) for row in group]
        expanded += sum(first.count(node) - 1 for node in set(first))
    assert expanded > 0, "some episodes go on from turns of others"


def test_a_tree_trains_each_edge_once(tmp_path, start):
    more = ("rlvr.rollout={kind: tree, factors: [3, 2], segment: 2}", "rlvr.advantage={kind: spo_tree, certain: 1.0}")
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)
    rows, _ = made.collect(0)
    trained: dict[int, int] = {}
    for row in rows:
        for node in {n for n, r in zip(row.node, row.role, strict=True) if r == Role.POLICY}:
            trained[node] = trained.get(node, 0) + 1
    every = {n for row in rows for n in row.node if n >= 0}
    assert set(trained) == every and set(trained.values()) == {1}
    assert any(r == Role.FORCED for row in rows for r in row.role)
    numbers = made.step(1)
    assert numbers["mismatch/max"] < 1e-4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.advantage=gigpo"], "gigpo needs turn_reward.*rollout: multi_turn"),
        (["rlvr.advantage=spo_tree"], "spo_tree needs node.*rollout: tree"),
        (["rlvr.advantage=gae"], "gae needs value.*kind: critic"),
        (["rlvr.credit=[{kind: truncated_is}]"], "truncated_is needs logp_sampler.*old_logp: trainer"),
        (["curate.sources.0.splits=[nowhere]"], "names no split of this recipe: nowhere"),
    ],
)
def test_a_need_nobody_serves_is_refused_with_the_way_out(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


def test_multi_turn_needs_an_environment(tmp_path, start, lake):
    """Known of what a recipe generates before the run, and of the records of files where an episode would begin."""
    with pytest.raises(RecipeError, match="Use a source of kind environment"):
        toys.trainer(tmp_path, start, toys.recipe(tmp_path), *TURNS)
    made = toys.trainer(tmp_path / "files", start, toys.lake(tmp_path), *TURNS)
    with pytest.raises(RecipeError, match="kind: environment"):
        made.collect(0)


def test_recomputed_old_log_probs_and_truncated_weights(tmp_path, start):
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]"
    )
    numbers = made.step(0)
    assert numbers["mismatch/max"] < 1e-4 and numbers["ratio/max"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("rollout", ["single_turn", "{kind: tree, factors: [2, 2], segment: 2}"])
def test_a_given_beginning_is_context_and_no_answer(tmp_path, start, rollout):
    more = (
        "presets=[prefix_rl]",
        "rlvr.prompting={kind: prefix_rl, share: 1.0}",
        f"rlvr.rollout={rollout}",
        "rlvr.prompts=8",
    )
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)
    rows, _ = made.collect(0)
    hinted = 0
    for row in rows:
        problem = made.by_uid[row.uid]
        hint = [t for t, r in zip(row.tokens, row.role, strict=True) if r == Role.HINT]
        text = made.tokenizer.decode(hint)
        assert problem.answer.startswith(text) and text != problem.answer and row.text.startswith(text)
        hinted += bool(hint)
        assert len({t.group for t in rows if t.uid == row.uid}) == 1
    assert hinted > len(rows) / 2
    numbers = made.step(1)
    assert numbers.get("mismatch/max", 0) < 1e-4


@pytest.mark.parametrize("kind", ["svs", "hindsight_answers", {"kind": "herl", "replace": 0}])
@pytest.mark.parametrize(("on_timeout", "score"), [("incorrect", 0.0), ("unscored", None)])
def test_rollouts_that_verify_their_rows_heed_on_timeout(monkeypatch, kind, on_timeout, score):
    """The verifier's time is not waited for; all else is real."""
    monkeypatch.setattr(verifiers, "verify_many", lambda rows: [verifiers.TIMED_OUT for _ in rows])
    context = replace(scripted.context(lambda prefix, number: "ok"), on_timeout=on_timeout)
    rows = bind("rlvr.rollout", kind).fn.run([scripted.request("X", 2)], context)
    assert [(row.score, row.status) for row in rows] == [(score, "timed_out")] * 2


def test_rollouts_are_told_what_the_recipe_says_of_timeouts(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "rlvr.on_timeout=unscored")
    assert made.collector._context(1, (0,)).on_timeout == "unscored"
