"""Grades of growing prefixes: the sheets' values, what the judge sees, laws of the differences, a run with a real endpoint."""

from __future__ import annotations

import judge_server
import pytest
import torch
import toys
import yaml
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from scripted import JudgeScorer, answered, tokenizer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_preset, read_recipe
from pipelines.rlvr.pack import pack

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l",
        info={"solution": "two and two are 4"},
    )
}  # fmt: skip


def row(text, *more, **about):
    return answered(UID, text, *more, **about)


def graded(rule, *rows, **settings):
    part, lender = (
        bind("rlvr.reward", {"kind": "exprl", "path": "./judge", "separator": "#", **settings}).fn,
        JudgeScorer(lambda body: rule(judge_server.parts(body)[3])),
    )
    part.connect(lender)
    part.score(list(rows), PROBLEMS)
    return lender


def shown(scorer):
    """The parts of each question."""
    return [judge_server.parts({"messages": conversation}) for conversation in scorer.asked]


def by_table(**grades):
    return lambda shown: f"Grade: {grades.get(shown[-2] if shown.endswith('#') else shown[-1], 'none')}"


def advantages(*rows, **settings):
    columns = pack(list(rows), step=0, total_steps=1)
    return bind("rlvr.advantage", {"kind": "exprl", **settings})(columns)


def test_the_sheets_values():
    """Grades 2, 4, 3, 5 of four steps; the values, and both forms of the advantage on every token of a step."""
    each = row("aa#bb#c#dd")
    graded(by_table(a=2, b=4, c=3, d=5), each)
    assert each.potential == [0.25, 0.75, 0.5, 1.0] and each.score == 1.0 and each.components["steps"] == 4
    assert each.turn == [-1, -1, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3], "the end token belongs to the last step"
    per_step = [each.turn.index(step) for step in range(4)]
    for baseline, values in (("delta", [-0.75, 0.5, -0.25, 0.5]), ("end", [-0.75, -0.25, -0.5, 0.0])):
        result = advantages(each, baseline=baseline)[0]
        assert [round(result[place].item(), 6) for place in per_step] == values
        assert all(result[t] == result[each.turn.index(step)] for t, step in enumerate(each.turn) if step >= 0)
    other = row("aa#bb#c#dd")
    graded(by_table(a=2, b=3, c=3, d=5), other)
    assert [round(v, 6) for v in other.potential] == [0.25, 0.5, 0.5, 1.0], "deltas .25, .25, 0, .5"
    assert [round(advantages(other)[0][place].item(), 6) for place in per_step] == [-0.75, 0.25, 0.0, 0.5]


def test_one_step_and_the_forms_of_the_outcome():
    single = row("a")
    graded(by_table(a=4), single)
    assert single.potential == [0.75] and advantages(single).abs().sum() == 0
    whole = row("a#b")
    lender = graded(by_table(b=3), whole, most=1)
    assert whole.potential == [0.5] and len(lender.asked) == 1
    grades = {"smooth": [0, 0.25, 0.5, 0.75, 1], "clipped": [0, 0, 0, 1, 1], "extremes": [0, None, None, None, 1],
              "semi_smooth": [0, None, None, 0.8, 1]}  # fmt: skip
    for form, values in grades.items():
        rows = [row(str(grade)) for grade in range(1, 6)]
        graded(lambda shown: f"Grade: {shown}", *rows, form=form)
        assert [r.score for r in rows] == values, form
    rows = [row(text) for text in ("5", "3", "x", "1")]
    graded(lambda shown: f"Grade: {shown}", *rows)
    assert [r.score for r in rows] == [1.0, 0.5, None, 0.0], "outcome mode of the sheet"


def test_the_judge_sees_the_solution_and_all_of_the_reasoning_the_policy_does_not():
    each = row("<think>a#b</think>c")
    lender = graded(by_table(a=1, c=5), each)
    assert [asked[3] for asked in shown(lender)] == ["<think>a#", "<think>a#b</think>c"]
    assert all(asked[2] == "two and two are 4" and "2 + 2?" in asked[1] for asked in shown(lender))
    assert "two and two" not in tokenizer().decode(each.tokens)


def test_what_cannot_be_read_leaves_the_row_out_and_what_was_cut_is_worth_nothing():
    unread, cut, fine = row("a#b#c"), row("a#b#c", Stop.LENGTH), row("a#c")
    lender = graded(by_table(a=2, c=5), unread, cut, fine)
    assert unread.score is None and unread.potential is None and unread.components["judge_unread"] == 1
    assert cut.potential == [0.0] * 3 and cut.score == 0.0 and len(lender.asked) == 4, (
        "nobody is asked about a row that was cut, and equal prefixes once"
    )
    columns = pack([unread, cut, fine], step=0, total_steps=1)
    assert columns["scored"].tolist() == [False, True, True] and not columns["mask"][0].any()
    assert advantages(unread, cut, fine)[:2].abs().sum() == 0
    failed = row("a", Stop.ERROR)
    assert not graded(by_table(a=2), failed).asked and failed.score is None


def test_steps_that_are_empty_or_too_many():
    each = row("#a##b#")
    graded(by_table(a=2, b=5), each)
    assert each.components["steps"] == 2 and set(each.turn) == {-1, 0, 1}
    many = row("#".join("abcdef"))
    lender = graded(lambda shown: "Grade: 3", many, most=3)
    assert [asked[3] for asked in shown(lender)] == ["a#", "a#b#", "a#b#c#d#e#f"]


def test_steps_end_at_the_token_that_completes_the_separator():
    from pipelines.engine.models import train_tokenizer

    own = train_tokenizer("bpe", 300, ["so 🙂#\n\n so#\n\n"] * 3)
    tokens = own("so 🙂#\n\nso#\n\n🙂🙂 so", add_special_tokens=False)["input_ids"]
    each = row("x")
    each.tokens, each.role, each.logp_old = [0, *tokens], [0] + [3] * len(tokens), [0.0] * (len(tokens) + 1)
    part, lender = (
        bind("rlvr.reward", {"kind": "exprl", "path": "./judge", "separator": "#"}).fn,
        JudgeScorer(lambda body: "Grade: 3"),
    )
    lender.tokenizer = lambda model="policy": own
    part.connect(lender)
    part.score([each], PROBLEMS)
    steps = [own.decode([t for t, k in zip(each.tokens, each.turn, strict=True) if k == step]) for step in range(3)]
    assert "".join(steps) == own.decode(tokens) and steps[0].startswith("so 🙂#") and "#" not in steps[2]


@given(st.integers(0, 400), st.sampled_from(["delta", "end", "group", "batch"]))
def test_laws(seed, baseline):
    batch = toys.rough(seed)
    steps = torch.where(batch.turn >= 0, 1, 0).new_tensor([int(t.max()) + 1 for t in batch.turn])
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(len(steps), int(batch.turn.max()) + 1, generator=draw)
    values = torch.where(torch.arange(values.shape[1]) < steps[:, None], values, torch.nan)
    batch.step_potential = values
    result = run_method("advantage", {"kind": "exprl", "baseline": baseline}, batch)
    assert result.isfinite().all() and not result[~batch.mask].any()
    for r in range(len(steps)):
        own = values[r, : steps[r]]
        if baseline == "delta":
            wanted = own.diff(prepend=torch.zeros(1))
            wanted[0] -= own[-1]
            assert abs(float(wanted.sum())) < 1e-5, "a row's steps add up to 0"
        elif baseline == "end":
            wanted = own - own[-1]
        else:
            rows = [
                i for i in range(len(steps))
                if batch.scored[i] and batch.mask[i].any() and (baseline == "batch" or batch.group[i] == batch.group[r])
            ]  # fmt: skip
            means = [values[i][batch.turn[i][batch.mask[i]]].mean() for i in rows]
            wanted = own - (sum(means) / len(means) if means else 0)
        for t in batch.mask[r].nonzero().squeeze(1).tolist():
            assert result[r, t].item() == pytest.approx(wanted[batch.turn[r, t]].item(), abs=1e-5)


def test_the_recipe_s_dense_stage_is_the_preset():
    stage = yaml.safe_load((toys.ROOT / "recipes/exprl.yaml").read_text())["stages"]["dense"]
    preset = read_preset("exprl")
    assert {name: stage[name] for name in SHARED[2:]} == {name: preset[name] for name in SHARED[2:]}


@given(st.floats(0, 1), st.integers(1, 5))
def test_equal_grades_at_all_steps_are_no_progress(value, steps):
    mask, scored = torch.ones(1, steps).bool(), torch.ones(1).bool()
    columns = {
        "step_potential": torch.full((1, steps), value), "turn": torch.arange(steps)[None], "mask": mask, "scored": scored,
        "group": torch.zeros(1).long(),
    }  # fmt: skip
    for baseline in ("delta", "end", "group", "batch"):
        assert bind("rlvr.advantage", {"kind": "exprl", "baseline": baseline})(columns).abs().max() < 1e-6


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"exprl grades the steps of single answers"):
        graded(by_table(a=2), row("a", turn=[-1, -1, 0, 0]))
    with pytest.raises(RecipeError, match=r"exprl needs step_potential.*reward: exprl"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.advantage=exprl"]))


def long_is_good(body):
    return f"Grade: {min(5, max(1, len(judge_server.parts(body)[3])))}"


@pytest.mark.slow
def test_a_run_with_an_endpoint(tmp_path, start, monkeypatch):
    """The preset through the trainer; the judge likes long prefixes."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    with judge_server.running(long_is_good) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        reward = "rlvr.reward={kind: exprl, model: judge, separator: l, most: 4}"
        toys.trainer(
            tmp_path, start, toys.recipe(tmp_path), "presets=[exprl]", reward, "rlvr.steps=2", "rlvr.group_size=16"
        ).run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    steps = [v["reward_component/steps"] for v in history if "reward_component/steps" in v]
    assert max(steps) > 1
    assert all(v["mismatch/max"] < 1e-4 for v in history if "mismatch/max" in v)
    assert all(judge_server.parts(body)[2] for body in judge.bodies), "the reference is shown"


SHARED = ("kind", "data", "advantage", "objective", "divergence", "loss_aggregation")


@pytest.mark.slow
@pytest.mark.long
def test_a_dense_stage_before_a_sparse_one(tmp_path):
    """The graph of recipes/exprl.yaml on the toy problems, through the flow."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    wanted = yaml.safe_load((toys.ROOT / "recipes/exprl.yaml").read_text())["stages"]
    rlvr, data, sft, _ = (body.pop(kind) for kind in ("rlvr", "curate", "sft", "evaluate"))
    with judge_server.running(long_is_good) as judge:
        reward = {"kind": "exprl", "model": "judge", "separator": "l", "most": 4, "url": judge.url}
        small = {**rlvr, "steps": 2}
        stages = {
            "data": {"kind": "curate", **data},
            "cold": {"kind": "sft", "data": "data", **sft},
            "dense": {"model": "cold", **small, **{k: wanted["dense"][k] for k in SHARED}, "reward": reward},
            "sparse": {**small, **{k: wanted["sparse"][k] for k in (*SHARED, "model")}},
        }
        file = tmp_path / "graph.yaml"
        file.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
        done = toys.whetstone("run", str(file), home=tmp_path / "home")
    assert judge.bodies and "sparse" in done.stdout + done.stderr
