"""`whetstone tournament`: a trained model and fixed players from the command line, what is written, and what is refused."""

from __future__ import annotations

import json

import exported
import pytest

from flows.cli import main


@pytest.fixture
def run(capsys):
    """The exit code, output and errors of the command line."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main.main(["tournament", *arguments])
        return ended.value.code, *capsys.readouterr()

    return call


def test_standings_of_fixed_players(run, tmp_path):
    log = tmp_path / "games.jsonl"
    code, out, _ = run("tic_tac_toe", "random", "perfect", "--set", "opening=2", "--openings", "40", "--log", str(log))
    assert code == 0
    assert "2 players, 40 openings, 4 games of each two from each, half in either seat" in out
    assert out.index("1  perfect  +") < out.index("2  random   0")
    games = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(games) == 160 and {move["player"] for game in games for move in game["moves"]} == {"random", "perfect"}
    assert str(log) in out and "Few openings" not in out


def test_a_trained_model_plays(run, home):
    exported.run()
    code, out, err = run("tic_tac_toe", "mine", "random", "--openings", "6", "--games", "2", "--json")
    assert code == 0, err
    body = json.loads(out)
    assert {each["name"] for each in body["ratings"]} == {"mine", "random"} and body["openings"] == 6
    assert body["games"] == 2
    [pair] = body["pairs"]
    assert pair["faults"]["mine"] > 0, "the model has never seen a board"
    assert pair["value"] == 0 and next(e for e in body["ratings"] if e["name"] == "random")["high"] is None
    again = run("tic_tac_toe", "mine", "random", "--openings", "6", "--games", "2", "--json")
    assert json.loads(again[1]) == body


def test_few_openings_are_said(run):
    assert "Few openings" in run("tic_tac_toe", "random", "perfect", "--games", "2")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tic_tac_toe", "random"], "two players or more"),
        (["tic_tac_toe", "random", "random"], "named twice"),
        (["tic_tac_toe", "random", "perfect", "--games", "3"], "Use 4"),
        (["tic_tac_toe", "random", "perfect", "--confidence", "95"], "Use 0.95"),
        (["tic_tac_toe", "random", "perfect", "--temperature", "-1"], "--temperature"),
        (["tic_tac_toe", "random", "perfect", "--set", "opponent=random"], "both seats are the players'"),
        (["tic_tac_toe", "random", "perfect", "--set", "opening=9"], "less than or equal to 8"),
        (["tic_tac_toe", "random", "perfect", "--log", "no/such/folder.jsonl"], "there is no folder"),
        (["frozen_lake", "random", "perfect"], "has no players"),
        (["tic_tac_toe", "random", "nobody"], "no run, model or experiment"),
        (["openenv", "random", "perfect"], "has no players"),
    ],
)
def test_what_cannot_be_played_is_refused_before_a_game(run, home, arguments, says):
    code, out, err = run(*arguments)
    assert code == 2 and says in err and out == ""
