"""Lost episodes and wrong answers as demonstrations of what they did reach."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import scripted
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import RolloutRequest
from pipelines.data.records import Problem, Role
from pipelines.environments import frozen_lake, relabel
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

MAP = ["SFF", "FHF", "FFG"]


def lake(rows=MAP, **info):
    """A problem on a map, as curation would have made it."""
    bare = Problem(
        uid="0" * 32, prompt=[], answer="right", verifier="exact", source="frozen_lake", licence="MIT",
        info={"environment": "frozen_lake", "map": rows, "walked": [], **info},
    )  # fmt: skip
    return replace(bare, prompt=frozen_lake.World().reset(bare))


def played(moves, problem=None, group=0, rollouts=1, max_tokens=12, **settings):
    """Rows of a problem whose every turn is the next of the moves."""
    problem = problem or lake()
    ctx = scripted.context(
        lambda prefix, number: moves[min(len(ctx.sampler.calls), len(moves)) - 1], max_tokens=max_tokens
    )
    [prompt] = ctx.render([problem.prompt])
    rollout = bind("rlvr.rollout", {"kind": "hindsight", "max_turns": len(moves), **settings}).fn
    return rollout.run([RolloutRequest(problem, prompt, group, rollouts)], ctx)


def test_a_lost_episode_is_a_way_to_where_it_ended():
    """right, up (nothing moves), nonsense, right: it stands in the corner, two moves from the start."""
    own, again = played(["right", "up", "jump", "right"], group=1)
    assert (own.correct, own.score, own.components["reached"]) == (False, 0.0, 0.0) and own.group == 1
    assert (again.correct, again.score, again.group, again.components["hindsight"]) == (True, 1.0, 3, 1.0)
    spoken = [text for role, text in scripted.parts(again) if role == Role.TEACHER_FORCED]
    assert spoken == ["right", "right"] and Role.POLICY not in again.role and again.uid == own.uid
    shown = [text for role, text in scripted.parts(again) if role in (Role.PROMPT, Role.ENVIRONMENT)]
    assert own.prompt is None and again.prompt[0]["content"] in shown[0], "logs show it as it was asked"
    assert "A.G\n.O.\n..." in shown[0] and ".AG\n.O.\n..." in shown[1], "every observation has the new goal"
    assert "..A\n.O.\n..G" in "".join(text for _, text in scripted.parts(own))
    assert again.logp_old == [0.0] * len(again.tokens) and len(again.turn_state) == 2
    turns = [t for t, role in zip(own.tokens, own.role, strict=True) if role == Role.POLICY]
    kept = [t for t, role in zip(again.tokens, again.role, strict=True) if role == Role.TEACHER_FORCED]
    assert turns[: len(kept) // 2] == kept[: len(kept) // 2], "token for token"


@pytest.mark.parametrize(
    ("moves", "rows", "why"),
    [
        (["right", "down"], 2, "it stood beside the hole that it fell into"),
        (["up", "up"], 1, "it never left its place"),
        (["right", "left"], 1, "it ended where it began"),
        (["right", "right", "down", "down"], 1, "it arrived"),
        (["down", "down", "up", "down"], 2, "the way to the first arrival"),
    ],
)
def test_where_an_episode_ended(moves, rows, why):
    drawn = played(moves)
    assert len(drawn) == rows, why
    for row in drawn[1:]:
        assert row.correct and len(row.turn_state) == (1 if "fell" in why else 2)


def test_what_relabels_reads_no_thoughts_either():
    """As the environment does; they are imitated with the move that they led to."""
    told = "<think>so</think>right"
    own, again = played([told, told], max_tokens=30)
    assert own.turn_valid == [1.0, 1.0] and again.correct and again.components["hindsight"] == 1.0
    assert [text for role, text in scripted.parts(again) if role == Role.TEACHER_FORCED] == [told, told]


def test_most_and_weights():
    assert [len(played(["right"], rollouts=4, most=most)) for most in (0, 1, 9)] == [4, 5, 8]
    assert len({row.group for row in played(["right"], rollouts=3)}) == 4, "groups of their own"


@given(st.lists(st.sampled_from(["left", "right", "up", "down", "?"]), min_size=1, max_size=8), st.integers(0, 30))
def test_what_is_relabelled_is_solved(moves, seed):
    """The messages that are kept solve the new problem in their last move, on the same ice and holes."""
    [fields] = frozen_lake.problems(1, seed, side=4)
    problem = Problem(uid="u", source="s", licence="l", **{k: v for k, v in fields.items() if k != "uid"})
    found = relabel("frozen_lake", problem, moves)
    if found is None:
        return
    other, places = found
    assert places == sorted(places) and other.uid == problem.uid and other.info["expert_turns"] == len(places)
    world = frozen_lake.World()
    assert world.reset(other) == other.prompt
    steps = [world.step(moves[place]) for place in places]
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True] and steps[-1].info["success"]
    changed = [(a, b) for a, b in zip("".join(problem.info["map"]), "".join(other.info["map"]), strict=True) if a != b]
    assert sorted(changed) == [("F", "G"), ("G", "F")]


def test_moves_that_the_prompt_shows_may_not_cross_the_new_goal():
    problem = lake(walked=["right", "right"])
    assert relabel("frozen_lake", problem, ["left"]) is None, "the prompt shows how it stood there before"
    other, places = relabel("frozen_lake", problem, ["down"])
    assert places == [0] and other.info["map"] == ["SFF", "FHG", "FFF"]
    assert relabel("frozen_lake", lake(beliefs=1.0), ["right"]) is None


def countdown(numbers=(3, 4, 2), target=20, text=False):
    metadata = {"numbers": list(numbers), "target": target}
    content = f"Using all the numbers {', '.join(map(str, numbers))}, create an expression that equals {target}."
    info = {"task": "countdown", "metadata": json.dumps(metadata) if text else metadata}
    return Problem(
        uid="0" * 32, prompt=[{"role": "user", "content": content}], answer="(3 + 2) * 4", verifier="reasoning_gym", source="c",
        licence="l", info=info,
    )  # fmt: skip


@pytest.mark.parametrize("text", [False, True])
def test_a_wrong_expression_is_right_for_its_own_value(text):
    problem = countdown(text=text)
    other = verifiers.relabel(problem, "<think>hm</think>3 * 4 + 2")
    assert other.prompt[0]["content"].endswith("equals 14.") and other.uid == problem.uid
    verdicts = [verifiers.verify_here("reasoning_gym", "3 * 4 + 2", p.answer, p.info).correct for p in (problem, other)]
    assert verdicts == [False, True] and type(other.info["metadata"]) is type(problem.info["metadata"])


@pytest.mark.parametrize("answer", ["3 * 4", "3 - 4 - 2", "3 / 4 + 2", "(3 + 2) * 4", "twenty", "3 * 4 + 2 + 0"])
def test_expressions_that_solve_no_countdown(answer):
    assert verifiers.relabel(countdown(), answer) is None


def test_a_target_that_is_also_a_number_is_left_alone():
    assert verifiers.relabel(countdown((20, 4, 2), 20), "20 + 4 + 2") is None


def test_answers_by_hand():
    problem = countdown()
    ctx = scripted.context(lambda prefix, number: ["(3 + 2) * 4", "3 * 4 + 2", "no"][number], max_tokens=20)
    [prompt] = ctx.render([problem.prompt])
    rollout = bind("rlvr.rollout", "hindsight_answers").fn
    rows = rollout.run([RolloutRequest(problem, prompt, 0, 3)], ctx)
    assert [(row.group, row.correct, row.status) for row in rows] == [
        (0, True, "correct"), (0, False, "incorrect"), (0, False, "unparsable"), (2, True, "correct"),
    ]  # fmt: skip
    (role, asked), (forced, text) = scripted.parts(rows[3])
    assert (role, forced, text) == (Role.PROMPT, Role.TEACHER_FORCED, "3 * 4 + 2") and "equals 14." in asked
    assert rows[3].prompt[0]["content"].endswith("equals 14.") and rows[1].prompt is None
    assert rows[3].tokens[-1] == scripted.tokenizer().eos_token_id and rows[3].components["hindsight"] == 1
    assert [row.components.get("reached") for row in rows] == [1.0, 0.0, 0.0, None]


def test_what_cannot_be_relabelled_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"environment guess_number cannot say.*multi_turn"):
        relabel("guess_number", lake(), [])
    with pytest.raises(RecipeError, match=r"verifier exact cannot say.*single_turn"):
        verifiers.relabel(replace(countdown(), verifier="exact"), "x")
    with pytest.raises(RecipeError, match="needs prompting: plain"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[hindsight]", "rlvr.prompting=paraphrase"]))
    able = {name for name in environments.known() if hasattr(environments.module(name), "relabel")}
    assert able == {"frozen_lake"}
    assert {name for name in verifiers.known() if hasattr(verifiers.load(name), "relabel")} == set(verifiers.RELABELLED)
    hindsight = ["presets=[hindsight]", "rlvr.rollout={kind: hindsight}"]
    sources = "curate.sources=[{kind: environment, task: sokoban, size: 9}]"
    check(read_recipe(toys.lake(tmp_path), hindsight))
    with pytest.raises(RecipeError, match=r"hindsight asks the environment .*sokoban\) cannot say.*frozen_lake"):
        check(read_recipe(toys.lake(tmp_path), [*hindsight, sources]))
    answers = "rlvr.rollout={kind: hindsight_answers}"
    check(read_recipe(toys.recipe(tmp_path), [answers]))
    with pytest.raises(RecipeError, match=r"hindsight_answers asks the verifier .*worked_sums\) cannot say"):
        check(read_recipe(toys.recipe(tmp_path), [answers, sources.replace("sokoban", "worked_sums")]))
    spans = "rlvr.reward=[verifier, {kind: drlc, model: judge, url: 'http://localhost:1', weight: 0.2}]"
    with pytest.raises(RecipeError, match="rollout: hindsight makes rows without any"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[hindsight]", "rlvr.advantage=reinforce_pp", spans]))
