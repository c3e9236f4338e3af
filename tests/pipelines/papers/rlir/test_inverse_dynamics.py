"""RLIR's reward by hand: the share of actions that the written boards give away, each read against the board written before it."""

from __future__ import annotations

import pytest

from pipelines import verifiers

BOARD = ".O..\nA...\n...G"
DOWN, RIGHT, FAR = ".O..\n....\nA..G", ".O..\n....\n.A.G", ".O..\n....\n..AG"
ANSWER = "\n\n".join([DOWN, RIGHT, FAR])
INFO = {"world": "frozen_lake", "board": BOARD, "actions": ["down", "right", "right"]}


def verdict(*boards, **info):
    return verifiers.verify("inverse_dynamics", "\n\n".join(boards), ANSWER, INFO | info)


def test_the_share_of_frames_by_hand():
    assert (verdict(DOWN, RIGHT, FAR).score, verdict(DOWN, RIGHT, FAR).status) == (1.0, "correct")
    early = ".O..\n.A..\n...G"  # right instead of down; then down, seen from there, instead of right; then right
    assert verdict(early, RIGHT, FAR).score == pytest.approx(1 / 3)
    assert verdict(early, RIGHT, FAR).status == "incorrect"
    assert verdict(DOWN, DOWN, RIGHT).score == pytest.approx(2 / 3), (
        "a board that stands still: down and left would both do that"
    )


def test_what_the_boards_show_beside_the_player_is_counted_beside_the_reward():
    garbled = [board.replace("O", ".") for board in (DOWN, RIGHT, FAR)]
    assert (verdict(*garbled).score, verdict(*garbled).components) == (1.0, {"exact": 0.0})
    assert verdict(DOWN, RIGHT, FAR).components == {"exact": 1.0}


@pytest.mark.parametrize("text", ["", DOWN, "\n\n".join([ANSWER, FAR]), "I cannot draw"])
def test_another_number_of_boards_is_unparsable(text):
    assert (verdict(text).score, verdict(text).status) == (0.0, "unparsable")


def test_blanks_tags_and_thoughts_change_nothing():
    spaced = "\n \n\n".join("\n".join(f" {line} " for line in board.split("\n")) for board in (DOWN, RIGHT, FAR))
    for text in (spaced, f"so <answer>\n{ANSWER}\n</answer>", f"<think>down first</think>\n{ANSWER}"):
        assert verdict(text).components == {"exact": 1.0}


def test_a_box_that_was_pushed_shows_in_the_player_s_place():
    info = {"world": "sokoban", "board": "#####\n#PX_#\n#__O#\n#####", "actions": ["right"]}
    pushed, ghost = "#####\n#_PX#\n#__O#\n#####", "#####\n#_P_#\n#__O#\n#####"
    verdicts = [verifiers.verify("inverse_dynamics", text, pushed, info) for text in (pushed, ghost)]
    assert [(v.score, v.components["exact"]) for v in verdicts] == [(1.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("info", [{"actions": None}, {"world": "go"}, {"board": None}])
def test_a_row_that_cannot_be_read_is_unscored(info):
    assert verdict(DOWN, RIGHT, FAR, **info).score is None
