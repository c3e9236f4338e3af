"""Games that the policy plays with itself: a row for each seat, groups and payments, MARS through the trainer, what plan refuses."""

from __future__ import annotations

import copy
import dataclasses
import json
import re

import pytest
import scripted
import torch
import toys
import yaml

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.papers.spiral import kuhn_poker, tic_tac_toe
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.algorithm import assign_credit


def played(row, script, *, rollouts=1, group=0, kind="multi_turn", max_tokens=8, **rollout):
    """Rows of one problem's games; the policy's messages are what `script` makes of the conversation so far and the call's number."""
    request = scripted.request(row["prompt"][0]["content"], rollouts, group=group, **row["info"])
    request = dataclasses.replace(request, problem=dataclasses.replace(request.problem, prompt=row["prompt"]))
    spec = {"kind": kind, **rollout}
    return bind("rlvr.rollout", spec).fn.run([request], scripted.context(script, max_tokens=max_tokens))


def first_free(prefix, number):
    """The lowest free square of the last board."""
    return re.findall(r"[1-9]", prefix.rsplit("You are", 1)[-1])[0]


def replayed(rows):
    """(who paid what, who succeeded) of a game whose moves are those that the rows say, made in turn."""
    world = tic_tac_toe.World()
    world.load_state_dict({"info": {"seats": [0, 1]}, "seed": 0, "moves": [], "fault": None})
    moves = [row.text.split(" | ") for row in rows]
    paid: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(sum(map(len, moves))):
        step = world.step(moves[turn % 2][turn // 2])
        paid[turn % 2].append(step.reward)
        for other, reward in step.others.items():
            if step.done:
                paid[other][-1] += reward
    assert step.done
    return paid


def test_a_game_is_a_row_for_each_seat():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    rows = played(row, first_free, max_turns=5, group=1)
    assert [(r.player, r.group, r.stop, r.correct, r.score) for r in rows] == [
        (0, 1, Stop.ENVIRONMENT, True, 1.0), (1, 3, Stop.ENVIRONMENT, False, -1.0),
    ], "1, 2, 3, ... : X has the first column's diagonal at 7; the second seat's group is as many on as the draw has problems"  # fmt: skip
    first, second = rows
    assert {0: first.turn_reward, 1: second.turn_reward} == replayed(rows)
    assert first.text == "1 | 3 | 5 | 7" and second.text == "2 | 4 | 6"
    assert first.prompt == row["prompt"] and second.prompt == [{"role": "user", "content": "You are O.\nX23\n456\n789"}]
    said = scripted.parts(second)
    assert "You are O.\nX23\n456\n789" in said[0][1] and "You are O.\nXOX\n456\n789" in said[2][1]
    assert [text for role, text in said if role == Role.POLICY] == ["2", "4", "6"]
    assert all(t.role.count(int(Role.POLICY)) == 2 * len(t.turn_reward) for t in rows), "a move and an end token each"
    assert len(set(first.turn_state + second.turn_state)) == 7, "every turn began in a state of its own"
    assert Trajectory.from_plain(first.to_plain()) == first


def test_a_system_prompt_is_told_to_either_seat():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    context = scripted.context(first_free)
    plain = scripted.request("", 1, **row["info"])
    plain = dataclasses.replace(plain, problem=dataclasses.replace(plain.problem, prompt=row["prompt"]))
    [request] = bind("rlvr.prompting", {"kind": "ppe", "text": "Play well."}).fn.build_requests([plain], context)
    rows = bind("rlvr.rollout", "multi_turn").fn.run([request], context)
    assert [r.player for r in rows] == [0, 1]
    assert all(scripted.parts(r)[0][1].count("Play well.") == 1 for r in rows)


def test_seats_of_a_group_lie_together_and_a_repeated_step_is_the_same():
    def script(prefix, number):
        free = re.findall(r"[1-9]", prefix.rsplit("You are", 1)[-1])
        return free[number % len(free)]

    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    rows = played(row, script, rollouts=3, max_turns=5)
    assert [(r.group, r.player) for r in rows] == [(0, 0)] * 3 + [(2, 1)] * 3
    for game in range(3):
        pair = [rows[game], rows[game + 3]]
        assert {0: pair[0].turn_reward, 1: pair[1].turn_reward} == replayed(pair)
    assert [r.to_plain() for r in rows] == [r.to_plain() for r in played(row, script, rollouts=3, max_turns=5)]


def test_a_fault_ends_the_game_and_a_seat_without_a_turn_has_no_row():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    [only] = played(row, lambda prefix, number: "x", max_turns=5)
    assert (only.player, only.score, only.components["invalid_turns"]) == (0, -1.0, 1.0)
    first, second = played(row, lambda prefix, number: "1", max_turns=5, invalid_cost=0.05)
    assert (first.score, second.score) == (0.0, -1.05) and not first.correct
    assert first.stop == second.stop == Stop.ENVIRONMENT and first.status == "incorrect"


def test_a_game_that_is_cut_ends_for_both():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    rows = played(row, first_free, max_turns=2)
    assert [(r.stop, len(r.turn_reward), r.score) for r in rows] == [(Stop.TURNS, 2, 0.0)] * 2
    rows = played(row, first_free, max_turns=5, regenerate=1)
    assert [(r.player, r.components["attempts"]) for r in rows] == [(0, 1.0), (1, 1.0)]
    spent = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 5, "max_tokens": 3}).fn
    request = scripted.request(row["prompt"][0]["content"], 1, **row["info"])
    rows = spent.run([request], scripted.context(first_free))
    assert [(r.player, r.stop, len(r.turn_reward)) for r in rows] == [(0, Stop.LENGTH, 2), (1, Stop.ENVIRONMENT, 1)]
    silent = played(row, lambda prefix, number: "" if "You are O" in prefix else "1", max_turns=5)
    assert [(r.player, r.stop, r.score) for r in silent] == [(0, Stop.ENVIRONMENT, 0.0), (1, Stop.ERROR, None)]


def test_a_seat_is_told_nothing_of_the_other_s_card():
    rows = list(kuhn_poker.problems(30, 0, opponent="policy"))
    for row in rows[:10]:
        cards = row["info"]["cards"]
        for trajectory in played(
            row, lambda prefix, number: re.findall(r"Answer (\w+) or (\w+)", prefix)[-1][1], max_turns=2
        ):
            assert f"You hold {cards[trajectory.player]}." in scripted.show(trajectory.tokens)
            assert f"You hold {cards[1 - trajectory.player]}." not in scripted.show(trajectory.tokens)


def test_a_fixed_opponent_makes_a_game_an_ordinary_environment():
    [row] = tic_tac_toe.problems(1, 0, opponent="perfect", opening=0)
    for kind, more in (("multi_turn", {"max_turns": 5}), ("turn_tree", {})):
        rows = played(row, first_free, rollouts=2, kind=kind, **more)
        assert all(r.player == 0 and r.group == 0 and r.prompt is None and r.score <= 0 for r in rows), kind
    [own] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    with pytest.raises(RecipeError, match="rollout: multi_turn alone"):
        played(own, first_free, rollouts=2, kind="turn_tree")


def test_a_lost_environment_leaves_both_seats_unscored(monkeypatch):
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    step = tic_tac_toe.World.step

    def fails_at_the_third(self, message):
        if len(self.moves) == 2:
            raise environments.Unavailable
        return step(self, message)

    monkeypatch.setattr(tic_tac_toe.World, "step", fails_at_the_third)
    rows = played(row, first_free, max_turns=5)
    assert [(r.stop, r.score, r.status) for r in rows] == [(Stop.ERROR, None, "environment_failed")] * 2


GAME = {"kind": "environment", "task": "tic_tac_toe"}


def games(folder, **config):
    """A recipe of self-play whose starting policy has seen random legal moves."""
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 320, "tie_word_embeddings": True}
    shown = {"opening": 2, "demonstrations": True, "errors": 1.0}
    return toys.recipe(
        folder,
        model={"fresh": {"architecture": "llama", "config": sizes}},
        curate={
            "sources": [
                GAME | {"size": 1500, "seed": 1, "config": shown, "splits": ["sft", "heldout"]},
                GAME | {"size": 300, "seed": 2, "config": {"opponent": "policy", "opening": 3} | config, "splits": ["train"]},
            ],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.4, "sft": 0.5, "heldout": 0.1},
        },
        sft={"split": "sft", "steps": 60, "max_length": 256, "tokens_per_step": 2000, "micro_batch_tokens": 2000},
        rlvr={"steps": 3, "prompts": 4, "group_size": 3, "sampling": {"max_tokens": 3}},
        evaluate={"tasks": [{"name": "chance", "samples": 2, "environment": GAME_TASK}]},
    )  # fmt: skip


GAME_TASK = {"task": "tic_tac_toe", "size": 6, "max_turns": 5, "max_tokens": 3}
MARS = ("presets=[mars]", "rlvr.rollout.max_turns=5", "rlvr.log_rollouts=20")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    return toys.start(folder, games(folder), ["sft.steps=40", "sft.tokens_per_step=1000"])


@pytest.mark.slow
def test_both_seats_train_in_groups_of_their_own(tmp_path, start):
    made = toys.trainer(tmp_path, start, games(tmp_path), *MARS)
    rows, _ = made.collect(0)
    columns = made.collector.pack(rows, 0, 0)
    assert sorted(set(columns["player"].tolist())) == [0, 1]
    assert {(row.group // made.settings.prompts, row.player) for row in rows} <= {(0, 0), (1, 1)}
    for group in columns["group"].unique():
        same = columns["group"] == group
        assert len(columns["player"][same].unique()) == len(columns["problem"][same].unique()) == 1
    for row in rows:
        assert row.score == pytest.approx(sum(row.turn_reward)) and len(row.prompt) == 1


@pytest.mark.slow
def test_a_run_broken_off_and_started_again_ends_in_the_same_bytes(tmp_path, start):
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    made = toys.trainer(tmp_path / "whole", start, games(tmp_path), *MARS)
    before = {name: weight.detach().clone() for name, weight in made.learner.model.named_parameters()}
    made.run()
    assert any(not before[name].equal(weight) for name, weight in made.learner.model.named_parameters())
    toys.run_stopped(lambda: toys.trainer(tmp_path / "halves", start, games(tmp_path), *MARS), 1)
    whole, halves = (toys.result(tmp_path / name / "work") for name in ("whole", "halves"))
    assert whole == halves
    assert {"reward/player_0", "reward/player_1"} <= {name for _, values in whole[1] for name in values}
    logged = (tmp_path / "whole/work/out/report/rollouts.jsonl").read_text()
    assert '"player": 1' in logged and "You are O" in logged


def pool(start):
    """Overrides for games against a pool of opponents, one of them a model."""
    entries = ["policy", "random", {"player": str(start / "sft/out/model"), "name": "cold", "weight": 2}]
    entries.append({"player": "past", "every": 2, "copies": 2})
    return (*MARS, "rlvr.rollout.opponents=" + json.dumps(entries), "rlvr.prompts=8")


def test_a_run_against_a_pool_of_opponents_ends_in_the_same_bytes_after_a_break(tmp_path, start):
    """Every row is the policy's own, and what it is paid against each opponent is a metric."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    made = toys.trainer(tmp_path / "whole", start, games(tmp_path), *pool(start))
    [frozen] = made.update.rollout.fn.league.models.values()
    before = copy.deepcopy(frozen.sampler.model.state_dict())
    made.run()
    past = made.update.rollout.fn.league.copies
    assert [version for version, _ in past] == [0, 2]
    assert any(not past[0][1].weights[name].equal(weight) for name, weight in past[1][1].weights.items())
    assert all(before[name].equal(weight) for name, weight in frozen.sampler.model.state_dict().items())
    toys.run_stopped(lambda: toys.trainer(tmp_path / "halves", start, games(tmp_path), *pool(start)), 1)
    whole, halves = (toys.result(tmp_path / name / "work") for name in ("whole", "halves"))
    assert whole == halves
    metrics = {name for _, values in whole[1] for name in values}
    assert {
        f"reward/{kind}_{name}" for kind in ("against", "won_against") for name in ("cold", "random", "past")
    } <= metrics
    lines = (tmp_path / "whole/work/out/report/rollouts.jsonl").read_text().splitlines()
    assert {json.loads(line).get("opponent") for line in lines} == {None, "random", "cold", "past"}


def test_dr_mas_compares_each_player_with_itself_alone(tmp_path, start):
    """Whatever the seats earn; the whole preset trains both."""
    made = toys.trainer(
        tmp_path, start, games(tmp_path), "presets=[dr_mas]", "rlvr.rollout.max_turns=5", "rlvr.steps=2"
    )
    rows, _ = made.collect(0)
    columns = assign_credit(made.update, made.collector.pack(rows, 0, 0))
    told = columns["scored"] & columns["mask"].any(1)
    advantage = (columns["advantage"] * columns["mask"]).sum(1) / columns["mask"].sum(1).clamp(min=1)
    seats = torch.stack([columns["group"], columns["player"]], 1)[told].unique(dim=0)
    assert {0, 1} == set(seats[:, 1].tolist())
    for group, player in seats.tolist():
        own = advantage[told & (columns["group"] == group) & (columns["player"] == player)]
        assert own.mean() == pytest.approx(0, abs=1e-5) and (
            len(own) == 1 or own.std() == pytest.approx(1, abs=1e-3) or not own.any()
        )
    assert advantage.any(), "some seat has won and lost"
    before = [weight.detach().clone() for weight in made.learner.model.parameters()]
    made.run()
    assert any(not old.equal(new) for old, new in zip(before, made.learner.model.parameters(), strict=True))
    metrics = {name for _, values in toys.history(tmp_path / "work") for name in values}
    assert {"reward/player_0", "reward/player_1"} <= metrics


def refused(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        check(read_recipe(path, list(overrides)))
    return str(caught.value)


def test_plan_refuses_what_cannot_play(tmp_path):
    own, against = games(tmp_path), tmp_path / "against"
    against.mkdir()
    against = games(against, opponent="random")
    check(read_recipe(own, list(MARS)))
    check(read_recipe(against, [*MARS, "rlvr.rollout={kind: turn_tree}", "rlvr.advantage=grpo"]))
    assert "only an episode scores" in refused(against, "rlvr.rollout=single_turn", "rlvr.advantage=grpo")
    lake = tmp_path / "lake"
    lake.mkdir()
    assert re.search("mars compares the players of games.*frozen_lake.*tic_tac_toe", refused(toys.lake(lake), *MARS))
    assert "turn_tree plays one seat" in refused(own, "rlvr.rollout={kind: turn_tree}", "rlvr.advantage=grpo")
    prompting = "rlvr.prompting={kind: ppe, text: Win.}"
    assert "ppe changes the problem's prompt" in refused(own, *MARS, prompting)
    check(read_recipe(against, [*MARS, prompting]))
    task = {"name": "own", "environment": {**GAME_TASK, "config": {"opponent": "policy"}}}
    assert "evaluate.tasks.own.environment.config.opponent" in refused(own, *MARS, f"evaluate.tasks={[task]}")


def test_plan_refuses_opponents_that_cannot_play(tmp_path, monkeypatch):
    own, against = games(tmp_path), tmp_path / "against"
    against.mkdir()
    pool = 'rlvr.rollout.opponents=["policy", "random", "perfect"]'
    check(read_recipe(own, [*MARS, pool]))
    server = "rlvr.sampler={url: 'http://127.0.0.1:8000', weights: /tmp}"
    check(read_recipe(own, [*MARS, pool, server]))
    told = refused(own, *MARS, 'rlvr.rollout.opponents=["policy", "./cold"]', server)
    assert "rlvr.rollout.opponents: cold is decoded in the trainer's process, and with rlvr.sampler" in told
    told = refused(games(against, opponent="random"), *MARS, pool)
    assert (
        "rlvr.rollout.opponents: no game of the data leaves a seat to them. Set the source's config.opponent to policy"
        in told
    )
    assert "no such setting" in refused(
        own, "rlvr.rollout={kind: turn_tree, opponents: [random]}", "rlvr.advantage=grpo"
    )
    for world in tic_tac_toe.World.__mro__[:2]:
        monkeypatch.delattr(world, "best")
    assert "the environment tic_tac_toe cannot say the moves of perfect" in refused(own, *MARS, pool)


def test_plan_refuses_samples_of_two_players(tmp_path):
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(games(tmp_path).read_text())
    stages = {
        "data": {"kind": "curate", **body["curate"]},
        "warm": {"kind": "sft", "data": "data", **body["sft"]},
        "drawn": {
            "kind": "sample",
            "data": "data",
            "model": "warm",
            "split": "train",
            "k": 2,
            "episodes": {"max_turns": 5},
        },
    }
    path.write_text(yaml.safe_dump({key: body[key] for key in ("name", "threads", "model")} | {"stages": stages}))
    assert "tic_tac_toe with opponent: policy an episode has two players" in refused(path)
