"""Which problems are asked again, and with what text."""

from __future__ import annotations

import pytest
from method_toys import answer
from scripted import context, request, show

from pipelines.contract.catalogue import bind

UID = f"{4:032x}"
QUESTION = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "say one"},
    {"role": "user", "content": "2+2"},
]


def asked(scores, conversation=QUESTION, **settings):
    """Texts of the second groups after rollouts with (score, correct, text)."""
    part = bind("rlvr.prompting", {"kind": "reflection", "instruction": "not {answer}!", **settings}).fn
    for score, correct, text in scores:
        rows = [answer(UID, 0, text, score=score, correct=correct)]
        assert part.on_rollouts(rows) is rows
    again = bind("rlvr.prompting", {"kind": "reflection", "instruction": "not {answer}!", **settings}).fn
    again.load_state_dict(part.state_dict())
    problem = request("p", 3, group=4)
    problem.problem.prompt[:] = conversation
    first, *others = again.build_requests([problem], context(lambda prefix, number: ""))
    assert first is problem and all((r.group, r.rollouts) == (6, 3) for r in others)
    return [show(r.prompt) for r in others]


@pytest.mark.parametrize(
    ("scores", "times"),
    [
        ([], 0),
        ([(0.0, False, "3")], 1),
        ([(1.0, True, "4")], 0),
        ([(1.0, True, "4"), (0.0, False, "3"), (0.0, False, "3"), (0.0, False, "3")], 0),  # 1/4 is not below 1/4
        ([(1.0, True, "4"), *[(0.0, False, "3")] * 4], 1),  # 1/5
        ([(0.5, False, "3"), (0.0, False, "3"), (0.0, False, "3")], 1),  # 1/6
        ([(0.5, False, "3"), (0.5, False, "3")], 0),
        ([(None, None, "3")], 0),
        ([(None, None, "3"), (0.0, True, "4")], 0),  # scored 0 though correct: no incorrect answer to reflect on
    ],
)
def test_a_mean_below_a_quarter_is_asked_again(scores, times):
    assert len(asked(scores)) == times


def test_the_text_is_the_last_question_with_the_last_incorrect_answer():
    texts = asked([(0.0, False, "3"), (0.0, False, "5"), *[(0.0, True, "4")] * 2])
    assert texts == ["be kind" + "say one" + "2+2\nnot 5!"]
    assert asked([(0.0, False, "5")], QUESTION[2:]) == ["2+2\nnot 5!"]


def test_the_sum_of_scores_starts_at_0_and_unknown_problems_are_plain():
    assert len(asked([(0.2, False, "3")], below=0.2)) == 0 and len(asked([(0.2, False, "3")], below=0.21)) == 1
