"""SDPO and SDFT: who is told what, by the real trainer, and what the policy then says of its own tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import toys
from ranks import handed_on, run_stages
from transformers import AutoModelForCausalLM

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data import chat
from pipelines.engine.policy import Policy

SHORT = "template: '{prompt} {solution}'"


def packed(tmp_path, start, preset, provider, *more):
    """The trainer, and the columns of a step; some groups have correct answers and some have none."""
    made = toys.trainer(
        tmp_path,
        start,
        toys.recipe(tmp_path),
        f"presets=[{preset}]",
        f"rlvr.providers=[{provider}]",
        "rlvr.prompts=4",
        *more,
    )
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    return made, SimpleNamespace(**columns)


def told_by_hand(made, batch, row, solution, model):
    """Log-probabilities of all tokens in the place of each of the row's own, after its prompt with a solution."""
    tokenizer = made.learner.scorer.tokenizer()
    problem = next(p for p in made.problems if int(p.uid[:15], 16) == int(batch.problem[row]))
    *before, last = problem.prompt
    (prompt,) = chat.render_prompts(tokenizer, [[*before, last | {"content": f"{last['content']} {solution}"}]])
    places = batch.mask[row].nonzero().squeeze(1)
    completion = batch.token[row, places[0] : places[-1] + 1].tolist()
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0].detach()
    return logits[len(prompt) - 1 : -1].log_softmax(-1), completion, places


def text_of(made, batch, row):
    return chat.completion_text(made.learner.scorer.tokenizer(), batch.token[row, batch.mask[row]].tolist())


def test_a_row_is_told_the_first_correct_answer_beside_it(tmp_path, start):
    made, batch = packed(tmp_path, start, "sdpo", f"{{kind: self_teacher, {SHORT}}}")
    groups, correct = batch.group.tolist(), (batch.raw_reward == 1).tolist()
    others = [
        [n for n in range(len(groups)) if groups[n] == g and correct[n] and n != row] for row, g in enumerate(groups)
    ]
    assert [] in others and any(correct[row] for row, rows in enumerate(others) if rows), (
        "a correct row is told another one"
    )
    for row, good in enumerate(others):
        if not good:
            assert torch.equal(batch.logp_teacher[row], batch.logp_old[row]), "it is nobody's pupil"
            continue
        solution = text_of(made, batch, good[0])
        of_all, completion, places = told_by_hand(made, batch, row, solution, made.learner.model)
        expected = of_all.gather(-1, torch.tensor(completion)[:, None]).squeeze(1)
        torch.testing.assert_close(batch.logp_teacher[row, places], expected, atol=2e-5, rtol=0)
    shares = made.learner.providers["self_teacher"].update(batch.token, vars(batch))
    assert shares == {"self_teacher/told": sum(map(bool, others)) / len(groups), "self_teacher/too_long": 0.0}


def test_the_starting_policy_may_be_told_the_record_s_solution(tmp_path, start):
    provider = f"{{kind: self_teacher_top, solution: record, weights: start, top: 4, {SHORT}}}"
    made, batch = packed(tmp_path, start, "sdft", provider)
    with torch.no_grad():
        for weight in made.learner.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    made.learner.fill(batch.token, vars(batch))
    model = AutoModelForCausalLM.from_pretrained(start / "sft/out/model").eval()
    for row in (0, len(batch.group) - 1):
        problem = next(p for p in made.problems if int(p.uid[:15], 16) == int(batch.problem[row]))
        of_all, _, places = told_by_hand(made, batch, row, problem.info.get("solution") or problem.answer, model)
        best = of_all.topk(4)
        assert torch.equal(batch.teacher_top_id[row, places], best.indices)
        torch.testing.assert_close(batch.logp_teacher_top[row, places], best.values, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["self_teacher", "self_teacher_top"])
def test_what_is_too_long_is_not_told(tmp_path, start, kind):
    """And the share says so: such a run learns nothing."""
    long = f"{{prompt}} {{solution}}{' 1' * 2000}"
    made, batch = packed(
        tmp_path, start, "sdpo" if kind == "self_teacher" else "sdft", f"{{kind: {kind}, template: '{long}'}}"
    )
    shares = made.learner.providers[kind].update(batch.token, vars(batch))
    assert shares["self_teacher/told"] == 0 < shares["self_teacher/too_long"]
    if kind == "self_teacher":
        assert torch.equal(batch.logp_teacher, batch.logp_old)
        return
    policy = Policy(made.learner.model, made.settings.sampling)
    own = policy.logp(batch.token, batch.mask).logp.detach()
    chosen = batch.teacher_top_id == batch.token[..., None]
    seen = (chosen.any(-1) & batch.mask).nonzero(as_tuple=True)
    assert len(seen[0]) > 10
    torch.testing.assert_close((batch.logp_teacher_top * chosen).sum(-1)[seen], own[seen], atol=2e-5, rtol=0)


def test_a_template_must_say_where_the_solution_stands():
    with pytest.raises(RecipeError, match=r"template has no \{solution\}"):
        bind("rlvr.providers", {"kind": "self_teacher", "template": "{prompt}"})


def weights_of(model):
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def test_the_average_follows_the_policy_and_teaches(tmp_path, start):
    """In the step after it is (1 - rate) start + rate policy; what a commit holds gives it back; it scores by these weights."""
    provider = f"{{kind: self_teacher, weights: average, rate: 0.25, {SHORT}}}"
    made, batch = packed(tmp_path, start, "sdpo", provider, "rlvr.optimizer.learning_rate=0.05")
    teacher = made.learner.providers["self_teacher"]
    before = weights_of(made.learner.model)
    made.make_step(0)
    after = weights_of(made.learner.model)
    assert (after - before).abs().max() > 1e-3
    assert weights_of(teacher.average).equal(before), "the policy that it taught is in it from the next step on"
    for _ in range(2):  # once a step
        made.learner.fill(batch.token, vars(batch) | {"step": 1})
    torch.testing.assert_close(weights_of(teacher.average), 0.75 * before + 0.25 * after)
    assert all(
        weight is not own
        for weight, own in zip(teacher.average.parameters(), made.learner.model.parameters(), strict=True)
    )
    state = {name: value.clone() for name, value in teacher.state_dict().items()}
    with torch.no_grad():
        for weight in teacher.average.parameters():
            weight.zero_()
    teacher.load_state_dict(state)
    torch.testing.assert_close(weights_of(teacher.average), 0.75 * before + 0.25 * after)
    batch.step = 1
    teacher.followed = 1
    made.learner.fill(batch.token, vars(batch))
    good = {int(g): n for n, g in reversed(list(enumerate(batch.group.tolist()))) if batch.raw_reward[n] == 1}
    row = next(n for n, g in enumerate(batch.group.tolist()) if good.get(g, n) != n)
    of_all, completion, places = told_by_hand(
        made, batch, row, text_of(made, batch, good[int(batch.group[row])]), teacher.average
    )
    expected = of_all.gather(-1, torch.tensor(completion)[:, None]).squeeze(1)
    torch.testing.assert_close(batch.logp_teacher[row, places], expected, atol=2e-5, rtol=0)


def test_a_run_broken_off_goes_on_with_its_average(tmp_path, start):
    provider = f"rlvr.providers=[{{kind: self_teacher, solution: record, weights: average, rate: 0.5, {SHORT}}}]"
    more = ("presets=[sdpo]", provider, "rlvr.steps=3", "rlvr.optimizer.learning_rate=0.01", "rlvr.commit.every=1")
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
    toys.trainer(tmp_path / "whole", start, toys.recipe(tmp_path), *more).run()
    toys.run_stopped(lambda: toys.trainer(tmp_path / "halves", start, toys.recipe(tmp_path), *more), 2)
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "halves/work")


FEEDBACK = """
def amiss(completions, answer):
    return [f"not {c[0]['content'][:2]}" if len(c[0]["content"]) % 2 else None for c in completions]

def number(completions):
    return [1.0 for _ in completions]

def raises(completions):
    raise ValueError("no tests")
"""


def test_feedback_is_told_where_no_answer_was_correct(tmp_path, start, monkeypatch):
    (tmp_path / "told.py").write_text(FEEDBACK)
    monkeypatch.syspath_prepend(tmp_path)
    of = "feedback_template: '{prompt} {feedback}'"
    made, batch = packed(tmp_path, start, "sdpo", f"{{kind: self_teacher, {SHORT}, {of}, feedback: 'told:amiss'}}")
    groups, correct = batch.group.tolist(), (batch.raw_reward == 1).tolist()
    counts = {"feedback": 0, "nothing": 0}
    for row, group in enumerate(groups):
        if any(g == group and correct[n] and n != row for n, g in enumerate(groups)):
            continue
        text = text_of(made, batch, row)
        if len(text) % 2 == 0:
            counts["nothing"] += 1
            assert torch.equal(batch.logp_teacher[row], batch.logp_old[row])
            continue
        counts["feedback"] += 1
        of_all, completion, places = told_by_hand(made, batch, row, f"not {text[:2]}", made.learner.model)
        expected = of_all.gather(-1, torch.tensor(completion)[:, None]).squeeze(1)
        torch.testing.assert_close(batch.logp_teacher[row, places], expected, atol=2e-5, rtol=0)
    assert min(counts.values()) > 0
    teacher = made.learner.providers["self_teacher"]
    for name, reason in (("number", "returned 1.0"), ("raises", "raised ValueError: no tests")):
        teacher.feedback = getattr(__import__("told"), name)
        with pytest.raises(RecipeError, match=f"rlvr.providers.feedback: .*{reason}"):
            made.learner.fill(batch.token, vars(batch))


def test_a_feedback_function_is_there_when_the_recipe_is_read():
    with pytest.raises(RecipeError, match="nowhere"):
        bind("rlvr.providers", {"kind": "self_teacher", "feedback": "./nowhere.py:told"})
    with pytest.raises(RecipeError, match=r"feedback_template has no \{feedback\}"):
        bind("rlvr.providers", {"kind": "self_teacher", "feedback_template": "{prompt}"})


@pytest.mark.slow
def test_the_average_of_two_processes_is_that_of_one(tmp_path, start):
    """Though each has its shards of the policy while it trains."""
    provider = f"{{kind: self_teacher, solution: record, weights: average, rate: 0.5, {SHORT}}}"
    more = [f"rlvr.providers=[{provider}]", "rlvr.steps=3", "rlvr.optimizer.learning_rate=0.01"]
    for count in (1, 2):
        work = toys.job(tmp_path / str(count), start, "presets=[sdpo]", f"rlvr.processes={count}", *more)
        run_stages("pipelines.rlvr", [work], count)
    one, two = handed_on(tmp_path / "1"), handed_on(tmp_path / "2")
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-4, rtol=0, msg=name)
