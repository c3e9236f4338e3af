"""Games of TextArena with seats: what each seat reads, whose turn it is, refused messages, rewards, legal moves, copies, training."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import scripted
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import copy_of, started

from evaluation import agent, tournament
from pipelines import environments
from pipelines.base.errors import RecipeError, UserError
from pipelines.engine.ranks import Ranks
from pipelines.environments import textarena as ours
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Evaluate

PLAYED = {
    "ConnectFour-v0": 2, "Hanabi-v0": 2, "KuhnPoker-v0": 2, "LeducHoldem-v0": 2, "Nim-v0-train": 2, "Othello-v0-tiny": 2,
    "PigDice-v0-50": 2, "ThreePlayerTicTacToe-v0": 3, "TicTacToe-v0-train": 2, "WildTicTacToe-v0": 2, "Breakthrough-v0-tiny": 2,
    "SimpleTak-v0": 2, "UltimateTicTacToe-v0": 2,
}  # fmt: skip
"""Game → players."""


@pytest.fixture
def package():
    return pytest.importorskip("textarena", reason="the package TextArena is not installed")


def game(name, number=1, seed=3, **config):
    """An episode of the policy in all seats."""
    row = list(environments.problems("textarena", number, seed, {"game": name, "opponent": "policy", **config}))[-1]
    return started("textarena", row)


def test_every_game_whose_moves_are_known_is_tested():
    assert {name.partition("-v")[0] for name in PLAYED} == {*ours.games.MOVES}


def test_each_seat_reads_its_own_cards_alone(package):
    for number in range(1, 9):
        world = game("KuhnPoker-v0-short", number, options={"max_rounds": 1})
        cards = {seat: "JQK"[card] for seat, card in world.env.state.game_state["player_cards"].items()}
        read = []
        while (seat := world.mover) is not None:
            read.append((seat, world.opening(seat)[0]["content"]))
            world.step(world.legal()[-1])
        assert {seat for seat, _ in read} == {0, 1}
        for seat, text in read:
            assert f"You are Player {seat}" in text
            assert re.findall(r"Your card is: '(.)'", text)[0] == cards[seat]


def test_rewards_are_those_of_each_seat_at_the_end(package):
    world = game("ConnectFour-v0")
    for move in ("0", "1", "0", "1", "0", "1"):
        step = world.step(f"[col {move}]")
        assert not step.done and step.reward == 0 and step.observation == ""
    assert world.mover == 0 and "dropped their disk (O) into column 1" in world.observation(0)
    assert "[Player 0] [col 0]" not in world.observation(0), "its own message is not repeated to it"
    last = world.step("[col 0]")
    assert (last.done, last.reward, last.others, last.info) == (True, 1.0, {1: -1.0}, {"success": True})
    assert world.mover is None and world.step("[col 1]").info["invalid"]


def test_a_refused_message_may_be_said_again_and_then_loses(package):
    world = game("ConnectFour-v0")
    world.step("[col 3]")
    first = world.step("[col 9]")
    assert first.info == {"success": False, "invalid": True} and not first.done
    assert (
        world.mover == 1
        and "Column 9 is out of bounds" in world.observation(1)
        and first.observation == world.observation(1)
    )
    kept = copy_of("textarena", world)
    assert not kept.step("[col 2]").info.get("invalid") and kept.mover == 0 and "attempted" not in kept.observation(0)
    again = world.step("nothing")
    assert (again.done, again.reward, again.others) == (True, -1.0, {0: 1.0}) and again.info["invalid"]


def test_a_game_that_fails_ends_unscored(package):
    world = game("Nim-v0")
    world.env.env.env.step = None
    with pytest.raises(environments.Unavailable, match="Nim-v0: TypeError"):
        world.step("[0 1]")


@pytest.mark.parametrize("name", PLAYED)
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 99), st.integers(0, 12), st.integers(0, 5), st.booleans())
def test_a_copy_goes_on_alike_and_legal_moves_are_those_that_are_not_refused(name, seed, before, after, anew):
    pytest.importorskip("textarena", reason="the package TextArena is not installed")
    world, draw = game(name, seed=seed, players=PLAYED[name]), random.Random(seed)
    if anew:
        world.reseed(seed)

    def moves():
        while world.mover is not None:
            refused = draw.random() < 0.2
            yield refused, "[away]" if refused else draw.choice(world.legal())

    for _, (refused, move) in zip(range(before), moves(), strict=False):
        seat = world.mover
        step = world.step(move)
        assert bool(step.info.get("invalid")) == refused or name.startswith("Othello")
        assert {seat, *step.others} == {*range(PLAYED[name])}
    twin = copy_of("textarena", world)
    for _, (_, move) in zip(range(after), moves(), strict=False):
        assert twin.mover == world.mover and twin.opening(world.mover) == world.opening(world.mover)
        assert twin.legal() == world.legal()
        assert twin.step(move) == world.step(move)


def test_legal_moves_are_all_of_them_and_asking_changes_nothing(package):
    world = game("ConnectFour-v0", options={"num_rows": 2, "num_cols": 5})
    for column in (1, 1, 4):
        before = world.state_dict(), world.state_key(), random.getstate()
        assert world.legal() == [f"[col {each}]" for each in ([0, 1, 2, 3, 4] if column == 1 else [0, 2, 3, 4])]
        assert (world.state_dict(), world.state_key(), random.getstate()) == before
        world.step(f"[col {column}]")
    assert game("Nim-v0", options={"piles": [1, 2]}).legal() == ["[0 1]", "[1 1]", "[1 2]"]
    poker = game("LeducHoldem-v0")
    assert poker.legal() == ["[check]", "[bet]"] and "Valid actions: '[bet]', '[check]'" in poker.observation(1)


def test_hanabi_pays_every_seat_the_share_of_the_cards(package):
    world = game("Hanabi-v0")
    seats, heights = [], world.env.state.game_state["fireworks"]
    while (seat := world.mover) is not None:
        if seat not in seats:
            text = world.opening(seat)[0]["content"]
            assert f"- Player {1 - seat} has cards" in text and f"- Player {seat} has cards" not in text
        seats.append(seat)
        step = world.step("[Play] 0")
    assert seats[:4] == [0, 1, 0, 1]
    assert step.reward == step.others[1 - seats[-1]] == sum(heights.values()) / 25 and step.info["success"] == (
        step.reward > 0
    )


def test_a_first_message_has_the_rules_and_the_moves_that_were_made_before(package):
    for suffix in ("", "-train", "-raw"):
        world = game(f"ConnectFour-v0{suffix}", opening=3)
        [first] = world.opening(world.mover)
        assert world.mover == 1 and first["content"].startswith(("[GAME] You are Player 1", "You are Player 1"))
        assert all(f"into column {move[5]}." in first["content"] for move in world.problem.info["opened"])


def test_the_random_opponent_moves_with_the_number_it_is_told(package):
    rows = list(
        environments.problems("textarena", 12, 0, {"game": "ConnectFour-v0", "opponent": "random", "opening": 1})
    )
    assert {tuple(row["info"]["seats"]) for row in rows} == {(0,), (1,)} and len(
        {json.dumps(row["info"]) for row in rows}
    ) == 12
    row = next(row for row in rows if row["info"]["seats"] == [0])
    assert started("textarena", row).messages == row["info"]["opened"] + started("textarena", row).messages[1:]
    games = set()
    for number in (1, 2, 3, 3):
        world = started("textarena", row)
        world.reseed(number)
        while not world.done and len(world.messages) < 9:
            assert world.mover == 0
            step = world.step(world.legal()[0])
            assert step.observation.count("Board state") >= 2 or step.done, "it reads both moves"
        assert copy_of("textarena", world).messages == world.messages
        games.add(tuple(world.messages))
    assert len(games) == 3


def test_demonstrations_are_legal_moves_of_the_policy_s_seat(package):
    config = {"game": "TicTacToe-v0", "opponent": "random", "demonstrations": True}
    for row in environments.problems("textarena", 12, 1, config):
        world = started("textarena", row)
        assert row["answer"] == row["info"]["solution"] in world.legal()
        spoken = [message["content"] for message in row["prompt"] if message["role"] == "assistant"]
        assert spoken == row["info"]["walked"] and [world.mover] == row["info"]["seats"]


@pytest.mark.parametrize(
    ("config", "field", "says"),
    [
        ({"game": "Poker-v0", "opponent": "random"}, "opponent", "the legal moves of Poker-v0 are not known here"),
        ({"game": "Poker-v0", "opponent": "policy", "opening": 1}, "opening", "the legal moves of Poker-v0"),
        ({"opening": 1}, "opening", "is of games with an opponent"),
        ({"game": "Nim-v0", "opponent": "policy", "demonstrations": True}, "opponent", "against somebody"),
        ({"game": "Nim-v0"}, "opponent", "is not for 1"),
        ({"game": "Nim-v0", "opponent": "policy", "players": 3}, "players", "is not for 3"),
        ({"game": "Nim-v0", "opponent": "policy", "options": {"heaps": 3}}, "options", "does not take them"),
        ({"game": "Nim-v0", "opponent": "policy", "opening": 40}, "", "after 40 moves"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(package, config, field, says, monkeypatch):
    monkeypatch.setattr(ours, "TRIES", 3)
    with pytest.raises(RecipeError, match=says) as caught:
        list(environments.problems("textarena", 1, 0, config))
    assert caught.value.problems[0].field == field


def test_without_the_package_plan_refuses_a_random_player_of_an_unknown_game():
    [told] = environments.refusals("textarena", {"game": "Poker-v0", "opponent": "random"})
    assert told.field == "opponent" and "ConnectFour" in told.fix
    assert not [*environments.refusals("textarena", {"game": "Nim-v0", "opponent": "random"})]
    assert not environments.says_moves("textarena", "best", {"game": "Nim-v0"})


@pytest.mark.slow
def test_no_order_of_hashes_is_in_what_is_shown(package):
    code = (
        "from pipelines import environments as e; import sys;"
        "print([r for g in sys.argv[1:] for r in e.problems('textarena', 3, 1, {'game': g, 'opponent': 'policy', 'opening': 4})])"
    )
    names = [name for name in PLAYED if PLAYED[name] == 2]
    texts = set()
    for seed in ("1", "2"):
        run = [sys.executable, "-c", code, *names]
        env = toys.environment(PYTHONHASHSEED=seed)
        texts.add(subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout)
    assert len(texts) == 1


def test_tournaments_begin_where_openings_or_deals_differ(package):
    assert len(tournament.openings("textarena", {"game": "LeducHoldem-v0"}, 9, 0)) == 9
    assert 2 < len(tournament.openings("textarena", {"game": "ConnectFour-v0", "opening": 1}, 20, 0)) <= 7
    with pytest.raises(UserError, match="a single opening"):
        tournament.openings("textarena", {"game": "ConnectFour-v0"}, 9, 0)
    with pytest.raises(UserError, match="more than two seats"):
        tournament.openings("textarena", {"game": "ThreePlayerTicTacToe-v0", "players": 3, "opening": 1}, 9, 0)
    tournament.check_fixed("textarena", "random", {"game": "ConnectFour-v0"})
    for player, name in (("perfect", "ConnectFour-v0"), ("random", "Poker-v0")):
        with pytest.raises(UserError, match="cannot say such a player's moves"):
            tournament.check_fixed("textarena", player, {"game": name})


def test_evaluation_against_random_moves(package):
    """A policy that stacks its discs in the first open column, which random moves seldom stop."""

    def first_open(prefix, number):
        board = prefix.rpartition("Board state:")[2]
        top = re.findall(r"[.XO](?: [.XO])+", board)[0].split()
        return f"[col {top.index('.')}]"

    lm = SimpleNamespace(
        tokenizer=scripted.tokenizer(), decoder=scripted.context(first_open).sampler, system_prompt=None, seed=0, progress=None,
        ranks=Ranks(),
    )  # fmt: skip
    about = {
        "task": "textarena",
        "size": 8,
        "max_turns": 30,
        "max_tokens": 9,
        "config": {"game": "ConnectFour-v0", "opponent": "random"},
    }
    read = Evaluate(tasks=[{"name": "four", "samples": 2, "environment": about}], bootstrap=100)
    metrics, logs = agent.evaluate(lm, None, read.tasks[0], read)
    assert metrics["four"]["mean_score"]["value"] > 0 and metrics["four"]["mean_turns"]["value"] >= 4
    assert len(logs["four"]) == 8


FOUR = {"game": "ConnectFour-v0", "options": {"num_rows": 4, "num_cols": 4}}


def self_play(folder):
    """A recipe of self-play in a small Connect Four, whose starting policy has seen random legal moves."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 3072, "tie_word_embeddings": True}
    source = {"kind": "environment", "task": "textarena"}
    shown = {**FOUR, "opponent": "random", "opening": 2, "demonstrations": True}
    played = {**FOUR, "opponent": "policy", "opening": 3}
    return toys.recipe(
        folder,
        model={"fresh": {"architecture": "llama", "config": sizes}},
        curate={
            "sources": [
                source | {"size": 60, "seed": 1, "config": shown, "splits": ["sft", "heldout"]},
                source | {"size": 12, "seed": 2, "config": played, "splits": ["train"]},
            ],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.2, "sft": 0.7, "heldout": 0.1},
        },
        sft={"split": "sft", "steps": 30, "max_length": 2000, "tokens_per_step": 4000, "micro_batch_tokens": 4000},
        rlvr={"steps": 2, "prompts": 2, "group_size": 2, "sampling": {"max_tokens": 9}, "micro_batch_tokens": 8000},
        evaluate={"tasks": [{"name": "chance", "environment": {"task": "textarena", "size": 2, "config": {**FOUR, "opponent": "random"}}}]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    pytest.importorskip("textarena", reason="the package TextArena is not installed")
    folder = tmp_path_factory.mktemp("four")
    return toys.start(folder, self_play(folder), [])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["mars", "spiral"])
def test_both_seats_train(tmp_path, start, preset):
    overrides = (f"presets=[{preset}]", "rlvr.rollout={kind: multi_turn, max_turns: 10}", "rlvr.log_rollouts=20")
    trained = toys.trainer(tmp_path, start, self_play(tmp_path), *overrides)
    before = {name: weight.detach().clone() for name, weight in trained.learner.model.named_parameters()}
    trained.run()
    assert any(not before[name].equal(weight) for name, weight in trained.learner.model.named_parameters())
    metrics = {name for _, values in toys.history(tmp_path / "work") for name in values}
    assert {"reward/player_0", "reward/player_1"} <= metrics
    logged = [json.loads(line) for line in (tmp_path / "work/out/report/rollouts.jsonl").read_text().splitlines()]
    assert {row["player"] for row in logged} == {0, 1} and "Connect Four" in json.dumps(logged)


@pytest.mark.slow
def test_a_pool_of_opponents_needs_games_whose_moves_are_known(tmp_path, package):
    pool = ("presets=[mars]", 'rlvr.rollout={kind: multi_turn, opponents: ["policy", "random"]}')
    check(read_recipe(self_play(tmp_path), [*pool]))
    with pytest.raises(RecipeError, match="the environment textarena cannot say the moves of perfect"):
        check(
            read_recipe(
                self_play(tmp_path),
                ["presets=[mars]", 'rlvr.rollout={kind: multi_turn, opponents: ["policy", "perfect"]}'],
            )
        )
    text = self_play(tmp_path).read_text().replace("ConnectFour-v0", "IteratedPrisonersDilemma-v0")
    (tmp_path / "toy.yaml").write_text(text)
    with pytest.raises(RecipeError, match="the environment textarena cannot say the moves of random"):
        check(read_recipe(tmp_path / "toy.yaml", [*pool]))
