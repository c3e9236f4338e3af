"""What methods ask of the loop beyond columns: whole updates, updates of their own, teacher-forced tokens, hidden states, paraphrases."""

from __future__ import annotations

import functools
import json

import pytest
import torch
import toys

from flows.cli import catalogue
from pipelines.base.errors import RecipeError
from pipelines.data.records import Role
from pipelines.engine import distribution, models
from pipelines.recipe.check import check
from pipelines.recipe.read import PRESETS, read_preset, read_recipe
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr import algorithm


def trainer(tmp_path, start, *overrides):
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *overrides)


def gradient(made):
    return torch.cat([p.grad.flatten() for p in made.learner.model.parameters()])


def frozen(tmp_path, start, name, *overrides):
    """A trainer that takes gradients and no steps."""
    (tmp_path / name).mkdir()
    made = trainer(tmp_path / name, start, "rlvr.prompts=8", *overrides)
    made.learner.stepper.step = lambda number: {}
    return made


COUPLED = {
    "pacs": ["presets=[pacs]"],
    "prdp": ["presets=[prdp]", "rlvr.epochs=1"],
    "siren": ["presets=[siren]", "rlvr.auxiliary_loss=[{kind: siren, weight: 5.0}]"],
    "chi2": ["presets=[chi2_occupancy]", "rlvr.divergence={kind: chi2_occupancy, weight: 2.0}"],
    "both": ["presets=[pacs]", "rlvr.auxiliary_loss=[{kind: siren, weight: 5.0}, {kind: entropy, weight: 0.1}]"],
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_couples_rows_has_one_gradient(tmp_path, start, name, monkeypatch):
    """In many small passes as in one that autograd sees whole."""
    found = []
    for kind, more in (("whole", []), ("parts", ["rlvr.micro_batch_tokens=64"])):
        made = frozen(tmp_path, start, kind, *COUPLED[name], *more)
        for bonus in made.update.auxiliary_loss:
            if hasattr(bonus.fn, "anchor"):
                bonus.fn.anchor = 0.1
        if "reference" in made.learner.providers:
            with torch.no_grad():  # away from home, where the divergence has a gradient
                made.learner.providers["reference"].policy.head.weight.mul_(1.1)
        if kind == "whole":
            monkeypatch.setattr(algorithm.Update, "batch_coupled", lambda self: False)
        made.step(0)
        monkeypatch.undo()
        found.append(gradient(made))
    assert found[0].abs().max() > 1e-4
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-3)


RETROSPECTIVE = ("presets=[pipo]", "rlvr.replay={kind: pipo, window: 2, start: 1}", "rlvr.steps=3")


def test_the_step_before_trains_once_more_and_first(tmp_path, start):
    """The retrospective update comes before the step's own, in as many mini-batches, at its learning rate."""
    schedule = "rlvr.optimizer.warmup=6"
    pipeline = trainer(tmp_path, start, *RETROSPECTIVE, "rlvr.mini_batches=2", schedule)
    learner, steps = pipeline.learner, []
    one_update, learn, rates = learner._one_update, learner.learn, []

    def watched_update(batch, ratios, metrics):
        steps[-1].append(batch)
        result = one_update(batch, ratios, metrics)
        rates.append((batch.update.replayed, metrics["optimizer/learning_rate"]))
        return result

    def watched_learn(updates):
        steps.append([])
        return learn(updates)

    learner._one_update, learner.learn = watched_update, watched_learn
    pipeline.run()
    assert learner.updates_done == 6, "replay updates have no place in the schedule"
    assert [[batch.update.replayed for batch in step] for step in steps[:2]] == [[False] * 2, [True] * 2 + [False] * 2]
    assert [batch.schedule_index for batch in steps[1]] == [2, 2, 2, 3]
    own, before = steps[1][2].update.columns, steps[1][0].update.columns
    first = steps[0][0].update.columns
    in_loss = first["in_loss"]
    assert torch.equal(before["logp_old"], first["logp_old"][in_loss])
    assert torch.equal(before["group"], first["group"][in_loss])
    assert before["replayed"].all() and not own["replayed"].any() and own["on_policy"].all()
    parts = [batch.rows for batch in steps[1][:2]]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(before["group"]))), "every row once"
    groups = [set(before["group"][rows].tolist()) for rows in parts]
    assert len(groups[0]) == len(groups[1]) == 2 and not groups[0] & groups[1]
    assert rates[2] == (True, rates[4][1]) and rates[2][1] == rates[3][1] < rates[5][1]


@pytest.mark.parametrize("old_logp", ["sampler", "trainer"])
def test_mismatch_is_that_of_the_weights_that_sampled(tmp_path, start, old_logp):
    """Though the retrospective update moves them before the step's own first pass: the same metrics as without it."""
    results = []
    for threshold in (0.0, 1000.0):
        folder = tmp_path / str(threshold)
        folder.mkdir()
        more = (f"rlvr.old_logp={old_logp}", "rlvr.optimizer.learning_rate=0.003", "rlvr.mini_batches=2")
        replay = f"rlvr.replay={{kind: pipo, window: 2, start: 1, threshold: {threshold}}}"
        pipeline = trainer(folder, start, *RETROSPECTIVE, replay, *more)
        pipeline.step(0)
        results.append(pipeline.step(1))
        assert len(pipeline.learner.mismatch.last_means) == 2, "measured once a step"
    replayed, plain = results
    assert replayed["replay/rows"] > 0 == plain["replay/rows"]
    for name in ("max", "p999", "mean"):
        assert replayed[f"mismatch/{name}"] == pytest.approx(plain[f"mismatch/{name}"], abs=1e-5)  # rounding
    assert replayed["mismatch/max"] < 1e-4
    assert abs(replayed["ratio/max"] - plain["ratio/max"]) > 1e-3, "the weights have moved"


def test_rehearsed_rows_have_a_gradient(tmp_path, start):
    """Stored before any method could say what share of the loss they have."""
    rehearse = "rlvr.replay={kind: dph_rl, rows: 4, solved: 1, problems: 40}"
    pipeline = frozen(tmp_path, start, "rehearsed", "presets=[dph_rl]", rehearse, "rlvr.mini_batches=1")
    batches, learn = [], pipeline.learner.learn
    pipeline.learner.learn = lambda updates: (batches.append(updates), learn(updates))[1]
    pipeline.step(0)
    ((own,),) = batches
    stored = own.columns["replayed"]
    assert own.normalise_separately and int(stored.sum()) == 4
    weight = algorithm.weigh(pipeline.update, own.columns, replayed_separately=True)["weight"]
    torch.testing.assert_close(weight[stored].sum(), torch.tensor(1.0))
    torch.testing.assert_close(weight[~stored].sum(), torch.tensor(1.0))


def test_demonstrations_are_rows_with_the_trainer_s_own_numbers(tmp_path, start):
    made = trainer(tmp_path, start, "presets=[visurf]")
    rows, kept = made.collect(0)
    demos = [row for row in rows if Role.TEACHER_FORCED in row.role]
    assert len(rows) == 20 and len(demos) == 4 and all(row.correct for row in demos)
    for row in demos:
        said = [t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.TEACHER_FORCED]
        assert made.tokenizer.decode(said[:-1]) == made.by_uid[row.uid].answer
        assert said[-1] == made.tokenizer.eos_token_id
    batch = made._pack(kept, 0)
    tokens = batch["token"]
    assert torch.equal(batch["teacher_forced"].any(1), torch.tensor([Role.TEACHER_FORCED in row.role for row in kept]))
    made.learner.fill(tokens, batch)
    with torch.no_grad():
        wanted = made.learner.policy.logp(tokens, batch["mask"]).logp
    torch.testing.assert_close(batch["logp_old"], wanted, atol=1e-4, rtol=0)
    assert (batch["logp_old"][batch["teacher_forced"]] < 0).any()
    assert made.step(0)["mismatch/max"] < 1e-4


@pytest.mark.parametrize("gate", [-1, 4])
def test_a_gate_at_either_end_is_plain_rl_or_plain_sft(tmp_path, start, gate):
    hpt = [
        "presets=[hpt_upge]",
        "rlvr.auxiliary_loss=[]",
        "rlvr.loss_aggregation=row_mean",
        f"rlvr.filter={{kind: hpt_gate, gate: {gate}}}",
    ]
    made = frozen(tmp_path, start, "hpt", *hpt)
    collected = made._batch(0)
    made._batch = lambda step: collected
    batch = made.collector.filtered(made._pack(collected.rows, 0))
    assert set(batch["teacher_forced"].any(1)[batch["in_loss"]].tolist()) == {gate == 4}
    made.step(0)
    if gate == -1:
        plain = frozen(
            tmp_path, start, "plain", "rlvr.advantage={kind: grpo, scale: none}", "rlvr.loss_aggregation=row_mean"
        )
        plain.step(0)
        torch.testing.assert_close(gradient(made), gradient(plain), atol=1e-6, rtol=1e-4)
    else:
        batch = {k: v[batch["in_loss"]] if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        tokens = batch["token"]
        again = frozen(tmp_path, start, "sft")
        logp = again.learner.policy.logp(tokens, batch["mask"]).logp
        (-(logp * batch["mask"]).sum(1) / batch["mask"].sum(1)).mean().backward()
        torch.testing.assert_close(gradient(made), gradient(again), atol=1e-5, rtol=1e-3)


def test_hints_start_from_nothing_and_learn_what_credit_says(tmp_path, start):
    seen = []
    for credit in ("[]", "[{kind: imitate, weight: 0.25}]"):
        folder = tmp_path / str(len(seen))
        folder.mkdir()
        made = trainer(
            folder, start, "presets=[seele]", f"rlvr.credit={credit}", "rlvr.rollout={kind: seele, rounds: 2}"
        )
        rows, kept = made.collect(0)
        assert len(rows) == 16 and {len([r for r in rows if r.group == g]) for g in range(4)} == {4}
        hints = [[t for t, role in zip(r.tokens, r.role, strict=True) if role == Role.TEACHER_FORCED] for r in rows]
        assert any(hints)
        for row, hint in zip(rows, hints, strict=True):
            solution = made.by_uid[row.uid].answer
            assert solution.startswith(made.tokenizer.decode(hint)) and len(hint) < len(solution)
        batch = made._pack(kept, 0)
        tokens = batch["token"]
        made.learner.fill(tokens, batch)
        columns = algorithm.assign_credit(made.update, batch)
        inside = batch["teacher_forced"] & (batch["mask"] & ~batch["teacher_forced"]).any(1, keepdim=True)
        assert (columns["advantage"][inside] == (0.25 if seen else 0)).all()
        seen.append(columns)
    assert made.update.rollout.fn.shares, "the next visit begins where this one ended"


def test_hints_grow_with_failure(tmp_path, start):
    made = trainer(tmp_path, start, "presets=[adhint]", "rlvr.group_size=6")
    rows, _ = made.collect(0)
    by_group = {g: [r for r in rows if r.group == g] for g in range(4)}
    for group in by_group.values():
        hinted = [r for r in group if Role.TEACHER_FORCED in r.role]
        plain = [r for r in group if r not in hinted]
        wrong = 1 - sum(r.score for r in plain[:3]) / 3
        assert len(group) == 6 and (len(hinted) == 3) == (wrong > 0)


def test_rehearsal_without_weight_is_no_rehearsal(tmp_path, start):
    """Rehearsed rows have denominators of their own, so a coefficient of 0 removes them altogether."""
    dph_rl = ("presets=[dph_rl]", "rlvr.mini_batches=1")
    off = "rlvr.divergence={kind: dph_rl, weight: 0.0}"
    rehearse = "rlvr.replay={kind: dph_rl, rows: 4, solved: 1, problems: 40}"
    made = frozen(tmp_path, start, "with", *dph_rl, off, rehearse)
    numbers = made.step(0)
    assert numbers["replay/rows"] == 4
    plain = frozen(tmp_path, start, "without", *dph_rl, "rlvr.replay=no_replay", "rlvr.divergence=null")
    plain.step(0)
    torch.testing.assert_close(gradient(made), gradient(plain), atol=1e-6, rtol=1e-4)
    stored = made.update.replay.fn.rows
    assert all(bool(row["correct"]) and (row["logp_old"][row["mask"]] < 0).any() for row in stored)
    far = trainer(
        tmp_path, start, "presets=[dph_rl]", rehearse, "rlvr.divergence={kind: dph_rl, weight: 1.0}", "rlvr.steps=2"
    )
    before = {k: v.clone() for k, v in far.learner.model.state_dict().items()}
    far.run()
    assert any(not torch.equal(v, far.learner.model.state_dict()[k]) for k, v in before.items())


def test_hidden_states_reach_the_method_row_by_row(tmp_path, start):
    for share in ("true", "false"):
        folder = tmp_path / share
        folder.mkdir()
        made = trainer(
            folder,
            start,
            "presets=[verl_erank]",
            "rlvr.credit=[{kind: verl_erank, stride: 1}]",
            f"rlvr.share_prefixes={share}",
        )
        _, kept = made.collect(0)
        batch = made._pack(kept, 0)
        tokens = batch["token"]
        made.learner.fill(tokens, batch)
        method = made.update.credit[0].fn
        decoder = made.learner.policy.decoder
        for row in range(0, len(kept), 3):
            with torch.no_grad():
                states = decoder(input_ids=tokens[row : row + 1]).last_hidden_state[0]
            wanted = method.hidden_statistics(states[:-1][batch["mask"][row, 1:]])
            torch.testing.assert_close(batch["hidden_stats"][row], torch.tensor(wanted), atol=2e-3, rtol=1e-3)


def test_the_first_order_comes_from_the_starting_policy(tmp_path, start):
    made = trainer(tmp_path, start, "presets=[gain_rl]", "rlvr.curriculum={kind: gain_rl, sigma: 20.0, step: 50.0}")
    made.run()
    method = made.update.curriculum.fn
    assert sorted(method.order) == list(range(len(made.problems))) and method.order != sorted(method.order)
    assert method.mu > 0 and method.steps == 4


def test_a_second_view_is_a_group_of_its_own(tmp_path, start):
    view = [
        "rlvr.prompting={kind: paraphrase, template: '{prompt} '}",
        "rlvr.filter=mixed",
        "rlvr.sampling_schedule={kind: dynamic, max_draws: 3}",
    ]
    made = trainer(tmp_path, start, *view)
    sampled, kept = made.collect(0)
    by_group = {}
    for row in sampled:
        by_group.setdefault(row.group, set()).add(row.uid)
    assert len(by_group) in (8, 16, 24) and all(len(uids) == 1 for uids in by_group.values())
    first = sorted(by_group)[:8]
    assert [by_group[g] for g in first[:4]] == [by_group[g] for g in first[4:]]
    assert len({(row.uid, row.group // 8) for row in kept}) <= 4, "four problems a step, whatever their views"


def test_reflection_shows_a_wrong_answer(tmp_path, start):
    more = [
        "rlvr.prompting={kind: reflection, below: 1.0, instruction: 'not {answer}'}",
        "rlvr.sampling.temperature=1.5",
    ]
    made = trainer(tmp_path, start, *more, "rlvr.curriculum=uniform")
    made.problems = made.problems[:4]
    made.update.curriculum.fn.start(4, 0)
    rows, _ = made.collect(0)
    assert {row.group for row in rows} == {0, 1, 2, 3}
    past = {uid: wrong for uid, (*_, wrong) in made.update.prompting.fn.past.items()}
    again, _ = made.collect(1)
    reflected = [row for row in again if row.group >= 4]
    assert reflected
    for row in reflected:
        prompt = made.tokenizer.decode([t for t, r in zip(row.tokens, row.role, strict=True) if r == Role.PROMPT])
        assert f"not {past[row.uid]}" in prompt


def test_rollouts_follow_the_budget(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.curriculum={kind: v0_budget, utility: mixed}")
    made.update.curriculum.fn.past = {str(n): [30.0, 30.0] for n in range(0, len(made.problems), 2)}
    made.update.curriculum.fn.mean = 0.5
    rows, _ = made.collect(0)
    sizes = {g: sum(row.group == g for row in rows) for g in {row.group for row in rows}}
    assert sum(sizes.values()) == 16 and len(sizes) == 4


def test_a_temperature_per_token_is_the_trainer_s_too(tmp_path, start):
    made = trainer(tmp_path, start, "presets=[hapo]", "rlvr.objective={kind: hapo, tau: 0.5}", "rlvr.steps=3")
    numbers = [made.step(step) for step in range(3)]
    mismatches = [n["mismatch/max"] for n in numbers if "mismatch/max" in n]  # of the steps that learn
    assert mismatches and max(mismatches) < 1e-4
    sampling = made.learner.policy.sampling
    assert sampling.adaptive.tau == 0.5 and sampling.adaptive.top > 0
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * 3
    spread = distribution.entropy(logits, made.settings.sampling)
    kind = made.update.objective.fn.normalised(spread)
    plain = [made.settings.sampling.model_copy(update={"temperature": 1 + 0.5 * float(k)}) for k in kind]
    tokens = torch.arange(50) % 30
    wanted = [float(distribution.log_prob(logits[i : i + 1], tokens[i : i + 1], plain[i])) for i in range(50)]
    # the statistics have moved since this step's sampling was made
    now = made.update.objective.fn.sampling(made.settings.sampling)
    torch.testing.assert_close(distribution.log_prob(logits, tokens, now), torch.tensor(wanted), atol=1e-4, rtol=1e-4)


def test_evaluation_says_the_prior_too(tmp_path, start):
    from evaluation import model

    made = trainer(tmp_path, start, "rlvr.prompting={kind: ppe, text: Think.}", "rlvr.steps=1")
    rows, _ = made.collect(0)
    assert made.tokenizer.decode(rows[0].tokens).startswith("<|begin|> <|system|>".replace(" ", ""))
    made.run()
    folder = tmp_path / "work/out/model"
    assert (
        json.loads((folder / "whetstone.json").read_text())["system_prompt"]
        == "Think."
        == models.system_prompt_of(folder)
    )
    assert json.loads((folder / "whetstone.json").read_text())["resume"] == "bitwise"
    recipe = read_recipe(toys.recipe(tmp_path))
    assert model.load(str(folder), recipe.model, batch_size=4).system_prompt == "Think."
    assert model.load(str(start / "sft/out/model"), recipe.model, batch_size=4).system_prompt is None


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.reward=co_reward"], ["co_reward needs prompting: paraphrase"]),
        (["rlvr.replay=pipo"], ["pipo needs objective: pipo"]),
        (["rlvr.divergence=dph_rl"], ["dph_rl needs replay: dph_rl"]),
        (["rlvr.advantage=visurf"], ["visurf needs teacher_forced", "rollout: demonstrated"]),
        (["rlvr.advantage=spo_chain"], ["spo_chain needs mc_value", "rollout: chain"]),
        (["rlvr.credit=[red]"], ["red needs value", "critic"]),
        (["rlvr.auxiliary_loss=[epo]"], ["epo needs turn", "multi_turn"]),
        (["rlvr.curriculum=gain_rl", "rlvr.credit=[verl_erank]"], ["gain_rl and verl_erank", "hidden_stats"]),
        (["rlvr.prompting=paraphrase", "rlvr.steps=1"], []),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(tmp_path, overrides, words):
    recipe = read_recipe(toys.recipe(tmp_path), overrides)
    if not words:
        check(recipe)
        return
    with pytest.raises(RecipeError) as caught:
        check(recipe)
    for word in words:
        assert word in str(caught.value)


def test_a_problem_without_a_second_wording_is_named(tmp_path, start):
    with pytest.raises(RecipeError, match=r"info\.paraphrase.*prompting\.template"):
        trainer(tmp_path, start, "rlvr.prompting=paraphrase").collect(0)


def remembering():
    """Presets with a method that keeps state, of those whose rollout needs no environment and no program."""
    for path in sorted(PRESETS.glob("*.yaml")):
        if any(
            words in path.read_text() for words in ("for records with a program", "for a policy that writes programs")
        ):
            continue
        fields = read_preset(path.stem)
        parts = [(slot, part) for slot in SLOTS for part in as_list(fields.get(slot))]
        entries = [catalogue.entry(slot, part if isinstance(part, str) else part["kind"]) for slot, part in parts]
        if any(e["remembers"] for e in entries) and not any("turn" in e["makes"] for e in entries):
            yield path.stem


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


SOONER = {
    "pipo": ["rlvr.replay={kind: pipo, window: 2, start: 1}"],
    "dph_rl": ["rlvr.replay={kind: dph_rl, solved: 1, problems: 40}"],
    "siren": ["rlvr.auxiliary_loss=[{kind: siren, weight: 5.0}]"],
    "verl_erank": ["rlvr.credit=[{kind: verl_erank, stride: 1}]"],
    "r3": ["rlvr.curriculum=uniform"],
}


QUICK = ("ares", "dapo_carry", "hapo", "siren", "v0_budget")
"""Of those that remember, some of each kind; the others are slow tests, for their number."""


@pytest.mark.parametrize(
    "preset", [preset if preset in QUICK else pytest.param(preset, marks=pytest.mark.slow) for preset in remembering()]
)
@pytest.mark.few(10, always=QUICK)
def test_what_a_method_remembers_survives_a_restart(tmp_path, start, preset):
    """Stopped between two steps and taken up by a new process: the same weights as without the stop."""
    results = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        more = [f"presets=[{preset}]", *SOONER.get(preset, []), "rlvr.prompts=8"]
        build = functools.partial(trainer, folder, start, *more)
        if name == "stopped":
            made = toys.run_stopped(build)
        else:
            made = build()
            made.run()
        results.append(torch.cat([p.detach().flatten() for p in made.learner.model.parameters()]))
    assert torch.equal(*results)
