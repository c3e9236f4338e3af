"""Boards that a world model wrote, judged by the actions that they give away (RLIR, arXiv 2509.23958).

The reward of boards b_1, ..., b_n that were written for a board b_0 and actions a_1, ..., a_n is the share of i for which the
action that is recovered from (b_(i-1), b_i) is a_i. As in the paper only b_0 is given. Its inverse dynamics are a network that
reads frames; here they are exact: the only action that would have left the player where b_i has it. What else b_i shows is not
looked at, so the component `exact`, 1 where all boards are the environment's, stands beside it. Correct is a text whose boards
give all the actions away. `info`: `world` (frozen_lake, sokoban or tic_tac_toe), `board`, `actions`; the answer holds the true
boards.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pipelines.papers.rlir.boards import recovered
from pipelines.verifiers.in_process import answer_text
from pipelines.verifiers.verdict import UNPARSABLE, Verdict

_STEPS = {"world": "frozen_lake", "board": "A..\n.OG", "actions": ["right", "right"]}
_CORRECT = ".A.\n.OG\n\n..A\n.OG"
EXAMPLES = (
    ("gold", _CORRECT, _CORRECT, _STEPS),
    ("junk", "..A\n.OG\n\n.A.\n.OG", _CORRECT, _STEPS),
    ("empty", "", _CORRECT, _STEPS),
    ("hedged", f"{_CORRECT}\n\n.A.\n.OG", _CORRECT, _STEPS),
    ("bomb", "A\n\n" * 20_000, _CORRECT, _STEPS),
)
"""Rows that the verifier is tested on before a run: kind, completion, answer, info."""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The share of the actions that are recovered; another number of boards than of actions is unparsable."""
    boards, actions = boards_of(answer_text(completion)), info["actions"]
    if len(boards) != len(actions):
        return UNPARSABLE
    steps = pairwise([info["board"], *boards])
    followed = [recovered(info["world"], *step) == action for step, action in zip(steps, actions, strict=True)]
    exact = float(boards == boards_of(answer))
    return Verdict(sum(followed) / len(followed), "correct" if all(followed) else "incorrect", {"exact": exact})


def boards_of(text: str) -> list[str]:
    """The boards of a text: lines without blanks around them; an empty line ends a board.

    >>> boards_of("A.\\n.G\\n \\n\\n .A \\n.G\\n")
    ['A.\\n.G', '.A\\n.G']
    """
    boards: list[list[str]] = [[]]
    for line in map(str.strip, text.splitlines()):
        if line:
            boards[-1].append(line)
        elif boards[-1]:
            boards.append([])
    return ["\n".join(board) for board in boards if board]
