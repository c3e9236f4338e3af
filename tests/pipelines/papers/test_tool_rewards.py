"""Rewards of turns with calls: StepTool, MatchTIR and GTPO on rows as the environment leaves them."""

from __future__ import annotations

import judge_server
import pytest
import scripted

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop, Trajectory


def problem(**info):
    return Problem(
        uid="0" * 32, prompt=[], answer="it is 21 C now", verifier="exact", source="s", licence="l", info=info
    )


def call(name="weather", arguments=None, outcome="ok", text="temp 21 C"):
    return {"name": name, "arguments": arguments or {"city": "Oslo"}, "outcome": outcome, "text": text}


def row(*turns, answer="it is 21 C now", correct=True, group=0, **about):
    calls = [*[list(turn) for turn in turns], []]
    rewards = [0.0] * len(turns) + [float(correct)]
    return Trajectory(
        uid="0" * 32, group=group, tokens=[1, 2], role=[0, 3], logp_old=[0.0, -1.0], max_tokens=9, stop=Stop.ENVIRONMENT, version=0,
        turn_reward=rewards, turn_calls=calls, score=float(correct), correct=correct, status="correct" if correct else "incorrect",
        text=" | ".join([*("call" for _ in turns), answer]), **about,
    )  # fmt: skip


def paid(spec, *rows, **info):
    bind("rlvr.reward", spec).fn.score(list(rows), {"0" * 32: problem(**info)})
    for each in rows:
        assert each.score == pytest.approx(sum(each.turn_reward))
    return [each.turn_reward for each in rows]


def test_steptool_pays_success_and_contribution():
    played = row(
        [call()],
        [call(outcome="failed", text="error: temp 21 C")],
        [call(text="no such place")],
        [call(), call(text="x")],
    )
    assert paid("steptool", played) == [[2.0, 0.0, 1.0, 1.5, 1.0]]
    assert played.components["turn.steptool"] == 4.5
    assert paid({"kind": "steptool", "weight": 0.1, "threshold": 0.5}, row([call()])) == [[0.1, 1.0]]


def test_steptool_without_calls_leaves_the_answer_alone():
    assert paid("steptool", row(), row(correct=False, answer="x")) == [[1.0], [0.0]]


def test_a_failed_call_without_contribution_adds_nothing_and_order_does_not_change_the_sum():
    bad, good = [call(outcome="timed_out", text="error")], [call()]
    first, second = row(bad, good), row(good, bad)
    assert paid("steptool", first, second) == [[0.0, 2.0, 1.0], [2.0, 0.0, 1.0]] and first.score == second.score


def judged(rule, *turns, answer="so 21"):
    """StepTool's rewards by a judge, and the judge; each turn calls once, and the environment says what the tool gave."""
    parts, role, ids = ["call"], [3] * 4, [*scripted.ids("call")]
    for _ in turns[1:]:
        parts += ["reply", "call"]
        ids += [*scripted.ids("reply"), *scripted.ids("call")]
        role += [4] * 5 + [3] * 4
    ids += [*scripted.ids("reply"), *scripted.ids(answer)]
    role += [4] * 5 + [3] * len(answer)
    played = row(*([turn] for turn in turns), answer=answer)
    played.tokens, played.role = ids, role
    reward, lender = bind("rlvr.reward", {"kind": "steptool", "path": "./judge"}).fn, scripted.JudgeScorer(rule)
    reward.connect(lender)
    asked = problem()
    asked.prompt.append({"role": "user", "content": "how warm is it"})
    reward.score([played], {"0" * 32: asked})
    assert played.score == pytest.approx(sum(played.turn_reward))
    return played, lender


def test_steptool_by_a_judge_pays_success_and_a_share_of_the_grade():
    """The sheet's steps: success with a 3, a failure with a 1, success with a 5."""
    calls = call(text="three"), call(outcome="failed", text="one"), call(text="five"), call(text="no idea")
    grades = {"three": "Grade: 3", "one": "Grade: 1", "five": "Grade: 5"}
    played, lender = judged(lambda body: grades.get(judge_server.parts(body)[3].split()[-1], "hm"), *calls)
    assert played.turn_reward == pytest.approx([1.6, 0.2, 2.0, 1.0, 1.0])
    assert played.components["judge_unread"] == 1 and len(lender.asked) == 4, "the answer is no call"
    instruction, conversation, _, step = judge_server.parts({"messages": lender.asked[1]})
    assert "step 2 of" in instruction and "contributed to the final answer" in instruction
    assert "how warm is it" in conversation and conversation.count("reply") == 4 and "so 21" in conversation
    assert step == 'weather {"city": "Oslo"} -> failed: one'


def test_steptool_takes_an_endpoint_with_a_model_only():
    with pytest.raises(RecipeError, match="Name its `model`"):
        bind("rlvr.reward", {"kind": "steptool", "url": "http://localhost/v1"})


REFERENCES = [{"name": "search", "arguments": {"q": "b", "k": 3}}, {"name": "calc", "arguments": {"x": 1}}]


def test_matchtir_pays_matches():
    turns = [call("search", {"q": "a", "k": 3}), call("search", {"q": "b"})], [call("calc", {"x": 1})]
    assert paid("matchtir", row(*turns), reference_calls=REFERENCES) == [[0.375, 1.0, 1.0]]
    assert paid("matchtir", row(*turns)) == [[0.0, 0.0, 1.0]]
    wrong = row(*turns, answer="it is 20 C now", correct=False)
    [rewards] = paid({"kind": "matchtir", "f1": True}, wrong, reference_calls=REFERENCES)
    assert rewards == pytest.approx([0.375, 1.0, 0.8]) and not wrong.correct


def test_what_was_thought_is_no_answer():
    """A call whose reply the model repeats in its reasoning alone did not contribute, and no word of it is compared."""
    thought = row([call()], answer="<think>it is 21 C now</think>no idea", correct=False)
    assert paid("steptool", thought) == [[1.0, 0.0]]
    thought = row([call("calc", {"x": 1})], answer="<think>it is 21 C now</think>no idea", correct=False)
    [rewards] = paid({"kind": "matchtir", "f1": True}, thought, reference_calls=REFERENCES)
    assert rewards[-1] == 0.0


def test_gtpo_pays_likeness_and_takes_malformed_calls():
    success = row([call("python", {"code": "print(6 * 7)"})])
    near = row([call("python", {"code": "print(6 * 8)"})], correct=False)
    far = row([call("python", {"code": "zzz"})], correct=False)
    broken = row([call("", {}, outcome="malformed")], correct=False)
    other = row([call("python", {"code": "print(6 * 7)"})], correct=False, group=1)
    made = paid("gtpo_turn", success, near, far, broken, other)
    assert made[0] == [0.0, 1.0] and 0.4 < made[1][-1] < 0.5 and made[2][-1] < 0.1
    assert made[3] == [-0.1, 0.0] and made[4] == [0.0, 0.0], "a group without success is paid nothing"
    assert all(rewards[-1] < 1 for rewards in made[1:])


def test_rows_without_a_score_or_turns():
    lost = row([call()])
    lost.score, lost.status = None, "environment_timed_out"
    bind("rlvr.reward", "steptool").fn.score([lost], {"0" * 32: problem()})
    assert lost.score is None and lost.turn_reward == [0.0, 1.0]
    single = row()
    single.turn_reward = single.turn_calls = None
    with pytest.raises(RecipeError, match=r"steptool pays turns.*multi_turn"):
        bind("rlvr.reward", "steptool").fn.score([single], {"0" * 32: problem()})
