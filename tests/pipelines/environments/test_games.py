"""Games as text: copies go on alike, nonsense is answered, experts win, dense rewards sum to one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import copy_of, problem, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments import frozen_lake, guess_number, toy_text

GAMES = [("toy_text", {"game": game}) for game in toy_text.IDS] + [
    ("guess_number", {"most": 15, "vague": 0.3, "progress": 0.5}),
    ("frozen_lake", {"side": 4, "fog": 1, "subgoals": True}),
    ("sokoban", {"boxes": 2, "actions": 2, "scale": 0.5}),
    ("sokoban", {"reward": "success", "shows": "both"}),
]


@pytest.mark.parametrize(("name", "config"), GAMES, ids=lambda value: str(value))
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 500), st.lists(st.integers(0, 5), max_size=5), st.lists(st.integers(0, 5), min_size=1, max_size=5)
)
def test_a_copy_goes_on_alike(name, config, seed, before, after):
    words = ["8", "3", "12", "x", "1", "15"] if name == "guess_number" else [
        *toy_text.ACTIONS.get(config.get("game", ""), frozen_lake.ACTIONS), "stand still", "up", "hit", "down||left",
    ]  # fmt: skip
    row = next(environments.problems(name, 1, seed, config))
    first = started(name, row)
    for index in before:
        first.step(words[index % len(words)])
    second = copy_of(name, first)
    texts = [words[i % len(words)] for i in after]
    assert [first.step(text) for text in texts] == [second.step(text) for text in texts]


@pytest.mark.parametrize(("game", "total"), [("taxi", None), ("cliff", -13.0), ("blackjack", None)])
def test_experts_of_toy_text_win_where_it_can_be_done(game, total):
    wins = 0
    for row in toy_text.problems(12, 3, game=game, scale=2.0):
        world = started("toy_text", row)
        steps = [world.step(action) for action in toy_text.expert(world)]
        assert steps[-1].done and not any(step.info.get("invalid") for step in steps)
        wins += steps[-1].info["success"]
        if total is not None:
            assert sum(step.reward for step in steps) == 2 * total
        nonsense = started("toy_text", row).step("somersault")
        assert nonsense.info["invalid"] and not nonsense.done and nonsense.reward == 0
    assert wins == 12 if game != "blackjack" else 0 < wins < 12


@pytest.mark.parametrize("name", ["toy_text", "guess_number", "sokoban"])
def test_demonstrations_are_the_expert_s_turns(name):
    rows = list(environments.problems(name, 30, 1, {"demonstrations": True}))
    assert len(rows) == 30 and {len(row["prompt"]) for row in rows} > {1, 3}
    for row in rows:
        started(name, row)
        assert [m["content"] for m in row["prompt"] if m["role"] == "assistant"] == row["info"]["walked"]


@given(st.integers(0, 300))
def test_sub_goals_sum_to_one_for_an_arrival_and_to_less_otherwise(seed):
    [row] = frozen_lake.problems(1, seed, subgoals=True)
    world = started("frozen_lake", row)
    way = frozen_lake.expert(row["info"]["map"])
    steps = [world.step(action) for action in way]
    assert sum(step.reward for step in steps) == pytest.approx(1.0) and steps[-1].info["success"]
    assert all(step.reward == pytest.approx(1 / len(way)) == step.components["subgoals"] for step in steps)
    wanderer = started("frozen_lake", row)
    earned = [wanderer.step(a).reward for a in (way[0], *(["left", "right"] * 2))]
    assert 0 <= sum(earned) <= 1 + 1e-9 and min(earned) >= 0


def test_fog_hides_what_is_far_and_makes_places_look_alike():
    rows = ["SFFF", "FFFF", "FFFF", "FFFG"]
    clear, fog = frozen_lake.World(), frozen_lake.World()
    about = {"prompt": [], "answer": "right", "verifier": "exact"}
    clear.reset(problem({**about, "info": {"map": rows}}))
    fog.reset(problem({**about, "info": {"map": rows, "fog": 1}}))
    assert fog.step("right").observation == "....\n....\n????\n????".replace("....", ".A.?", 1).replace("....", "...?")
    assert clear.step("right").observation.count("?") == 0 and fog.state_key() != clear.state_key()


def test_guesses_are_paid_for_what_they_rule_out():
    [row] = guess_number.problems(1, 4, most=15, progress=0.5)
    world = started("guess_number", row)
    rewards = [world.step(guess) for guess in guess_number.bisect(15, row["info"]["number"])]
    assert rewards[-1].done and rewards[-1].info["success"] and rewards[-1].reward == 1.0
    assert 0 < sum(step.reward for step in rewards[:-1]) <= 0.5 or len(rewards) == 1
    again = started("guess_number", row)
    first = again.step("1")
    assert again.step("1").reward == 0 or first.done, "a guess that rules out nothing is paid nothing"
    assert started("guess_number", row).step("seven").info["invalid"]


def test_a_vague_user_says_less():
    rows = list(guess_number.problems(40, 2, vague=1.0, most=100))
    answers = {started("guess_number", row).step("50").observation for row in rows}
    assert answers <= {"close", "no", "yes"} and {"close", "no"} <= answers


def test_unknown_games():
    with pytest.raises(RecipeError, match=r"no game 'taxis'.*taxi"):
        list(toy_text.problems(1, 0, game="taxis"))


def test_textarena_guess_the_number():
    pytest.importorskip("textarena")
    rows = list(environments.problems("textarena", 3, 5, {"game": "GuessTheNumber-v0"}))
    won = 0
    for row in rows:
        world, low, high = started("textarena", row), 1, 20
        for _ in range(10):
            guess = (low + high) // 2
            copy = copy_of("textarena", world)
            step = world.step(f"I say [{guess}]")
            assert copy.step(f"I say [{guess}]") == step
            if step.done:
                break
            assert "I say" not in step.observation, "only what the game says"
            low, high = (guess + 1, high) if "higher" in step.observation.lower() else (low, guess - 1)
        assert step.done and step.info["success"] and step.reward == 1
        won += 1
    assert won == 3 and len({json.dumps(row["info"]) for row in rows}) == 3
    with pytest.raises(RecipeError, match="no game 'Chess-9'"):
        list(environments.problems("textarena", 1, 0, {"game": "Chess-9"}))


@pytest.mark.slow
@pytest.mark.parametrize("game", ["Minesweeper-v0", "Mastermind-v0", "TowerOfHanoi-v0"])
def test_other_games_of_textarena_are_played(game):
    pytest.importorskip("textarena")
    [row] = environments.problems("textarena", 1, 5, {"game": game})
    first, second = started("textarena", row), started("textarena", row)
    for message in ("[a]", "hello", "[1 2 3 4]", "[A C]", "[crane]"):
        steps = [world.step(message) for world in (first, second)]
        assert steps[0] == steps[1]
        if steps[0].done:
            break
