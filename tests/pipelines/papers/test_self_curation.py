"""SELF's filter: what the policy solves greedily gets no group, by its own rollouts in a real run."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

PRESET = "presets=[self_curation]"


def trainer(tmp_path, start, *more):
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), PRESET, *more)


def watched(made):
    """(problems, outcomes) of each time that the curriculum tries problems out; what is asked for must be one greedy rollout."""
    part, calls = made.update.curriculum.fn, []
    asked = part.try_out

    def try_out(problems, rollouts, temperature):
        assert (rollouts, temperature) == (1, 0.0)
        calls.append((problems, asked(problems, rollouts, temperature)))
        return calls[-1][1]

    part.try_out = try_out
    return calls


def test_only_what_greedy_decoding_does_not_solve_is_sampled(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.prompts=12", "rlvr.group_size=3")
    calls = watched(made)
    rows, _ = made.collect(0)
    [(problems, outcomes)] = calls
    assert len(problems) == 12 and [o.problem for o in outcomes] == problems
    solved = {made.problems[o.problem].uid for o in outcomes if o.correct}
    failed = {made.problems[o.problem].uid for o in outcomes if not o.correct}
    assert solved and failed, "the toy model solves some"
    for problem in problems:  # greedy answers by transformers, judged by the problem's verifier
        from pipelines.verifiers import verify_many

        about = made.problems[problem]
        [prompt] = made.collector.rendered([about])
        answer = toys.greedy(made.learner.model, prompt, made.settings.sampling.max_tokens)
        answer = (
            answer[: answer.index(made.tokenizer.eos_token_id)] if made.tokenizer.eos_token_id in answer else answer
        )
        [verdict] = verify_many([(about.verifier, made.tokenizer.decode(answer), about.answer, about.info)])
        assert bool(verdict.correct) == (about.uid in solved)
    assert {row.uid for row in rows} == failed and len(rows) == 3 * len(failed)
    assert made.collector.sampling == made.settings.sampling, "groups are sampled with the recipe's own settings"


def test_a_run_tells_what_was_tried_and_pays_for_it(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.steps=3", "rlvr.prompts=8")
    calls = watched(made)
    made.run()
    values = [v for _, v in toys.history(tmp_path / "work")]
    spent = 0.0
    for (_, outcomes), metrics in zip(calls, values, strict=True):
        solved = sum(o.correct for o in outcomes)
        assert metrics["tried/rows"] == 8 and metrics["tried/correct"] == solved / 8
        assert metrics["rollout/rows"] == 4 * (8 - solved)
        spent += round(metrics["rollout/rows"] * metrics["rollout/length_mean"] + metrics["tried/tokens"])
        assert metrics["tokens/sampled_so_far"] == spent and metrics["tried/tokens"] > 0


def test_where_everything_is_solved_no_update_is_made(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.steps=4", "rlvr.optimizer.warmup=3")
    part, solved = made.update.curriculum.fn, []
    asked = part.try_out

    def try_out(problems, rollouts, temperature):
        outcomes = asked(problems, rollouts, temperature)
        solved.append(len(solved) in (0, 2))
        return [GroupOutcome(o.problem, 1, int(solved[-1])) for o in outcomes]

    part.try_out = try_out
    numbers = made.run()
    values = [v for _, v in toys.history(tmp_path / "work")]
    assert numbers["steps"] == 4 and solved == [True, False, True, False]
    assert [v["rollout/rows"] for v in values] == [0.0, 16.0, 0.0, 16.0]
    rates = [v.get("optimizer/learning_rate") for v in values]
    assert rates[0] is rates[2] is None and 0 < rates[1] < rates[3], "the schedule counts updates"
    assert made.learner.updates_done == 2 * 2


def test_a_dynamic_schedule_fills_the_step(tmp_path, start):
    more = ["rlvr.prompts=6", "rlvr.group_size=2", "rlvr.sampling_schedule={kind: dynamic, max_draws: 40}"]
    made = trainer(tmp_path, start, *more)
    calls = watched(made)
    _, rows = made.collect(0)
    assert len({row.uid for row in rows}) == 6 and len(rows) == 12 and len(calls) > 1
    tried = [problem for problems, _ in calls for problem in problems]
    assert len(tried) == len(set(tried)), "each draw asks the next problems of the pass"


def test_groups_of_paraphrases_stay_together_where_problems_are_left_out(tmp_path, start):
    """Their groups are as many apart as problems were asked, not as many as a step wants."""
    made = trainer(
        tmp_path,
        start,
        "rlvr.prompts=8",
        "rlvr.group_size=2",
        "rlvr.prompting={kind: paraphrase, template: '{prompt}'}",
    )
    calls = watched(made)
    drawn = []
    schedule = made.update.sampling_schedule.fn
    collect = schedule.collect
    schedule.collect = lambda draw, prompts: collect(lambda: drawn.extend(draw()) or drawn, prompts)
    made.collect(0)
    failed = [o for _, outcomes in calls for o in outcomes if not o.correct]
    assert 0 < len(failed) < 8 and len(drawn) == len(failed)
    for problem in drawn:
        assert len({row.uid for row in problem.rows}) == 1 and len(problem.rows) == 4


def test_what_nobody_could_score_is_not_solved():
    part = bind("rlvr.curriculum", "self_curation").fn
    part.start(3, 0)
    outcomes = {0: (0, 0), 1: (1, 0), 2: (1, 1)}
    part.try_out = lambda problems, *_: [GroupOutcome(p, *outcomes[p]) for p in problems]
    assert sorted(a.problem for a in part.propose(3, 4)) == [0, 1]


def test_episodes_are_played_greedily_too(tmp_path, lake):
    turns = "rlvr.rollout={kind: multi_turn, max_turns: 3}"
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), PRESET, turns, "rlvr.prompts=8")
    calls = watched(made)
    made.run()
    outcomes = [o for _, each in calls for o in each]
    assert len(outcomes) == 3 * 8 and all(o.scored == 1 for o in outcomes)


def test_windows_cut_what_it_wants_whole(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path), [PRESET, "rlvr.window=0.5", "rlvr.mini_batches=1"])
    with pytest.raises(RecipeError, match="curriculum: self_curation asks for whole answers"):
        check(recipe)
