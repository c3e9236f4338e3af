"""Rows cut at a window and brought on in later steps: the row that they would have been, with each token's own version."""

from __future__ import annotations

import copy

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import context, request, tokenizer
from stand_in import StandIn

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.method import own_update
from pipelines.contract.rollout import Completion, RolloutContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams as RandomStreams
from pipelines.data.records import Role, Stop
from pipelines.engine import checkpoint, server_endpoint
from pipelines.engine.distribution import stream_points
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.pack import pack
from pipelines.rlvr.windows import OPEN_ROWS

CUT = ("rlvr.window=2", "rlvr.sampling.temperature=1.3", "rlvr.optimizer.learning_rate=0.003", "rlvr.steps=7")


class Streams:
    """A sampler whose next token and log-prob are a function of the stream, the place in it and the prefix."""

    def extend(self, prefixes, sampling, generator, *, entropy=False, streams=None):
        return [self.completion(list(p), sampling.max_tokens, *s) for p, s in zip(prefixes, streams, strict=True)]

    def completion(self, prefix, limit, stream, drawn):
        tokens, logps = [], []
        while len(tokens) < limit and (not tokens or tokens[-1] != 2):
            place = torch.tensor([drawn + len(tokens)])
            point = float(stream_points(torch.tensor([stream]), place, 1))
            tokens.append(2 if point < 0.12 else 3 + int(point * 90))
            logps.append(-float(hash(tuple(prefix + tokens)) % 1000) / 999)
        return Completion(tokens, logps, Stop.END if tokens[-1] == 2 else Stop.LENGTH)


def in_windows(sampler, window, sampling, prompts, seed=0):
    """Single-turn rows of some prompts, brought on until all have ended; every row's versions count the windows."""
    rollout = bind("rlvr.rollout", "single_turn").fn
    base = context(lambda *_: "")

    def at(version):
        return RolloutContext(sampler, sampling, 2, RandomStreams(seed), False, version, tokenizer(), window)

    rows = rollout.run([request(text, 3, group=i) for i, text in enumerate(prompts)], at(0))
    for version in range(1, 2 * sampling.max_tokens):
        places = [i for i, row in enumerate(rows) if row.stop == Stop.WINDOW]
        if not places:
            break
        for i, row in zip(places, rollout.resume([rows[i] for i in places], at(version)), strict=True):
            rows[i] = row
    assert base.window is None and all(row.stop != Stop.WINDOW for row in rows)
    return rows


def essence(row):
    return row.tokens, row.role, row.logp_old, row.stop, row.text, row.stream, row.max_tokens


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**31))
def test_a_row_in_windows_is_the_row_in_one_piece(window, max_tokens, seed):
    sampling = Sampling(max_tokens=max_tokens)
    whole = in_windows(Streams(), max_tokens, sampling, ["ab", "c"], seed)
    cut = in_windows(Streams(), window, sampling, ["ab", "c"], seed)
    assert [essence(row) for row in whole] == [essence(row) for row in cut]
    assert len({row.stream for row in cut}) == len(cut)
    for row in cut:
        drawn = [v for v, role in zip(row.versions, row.role, strict=True) if role == Role.POLICY]
        assert drawn == [i // window for i in range(len(drawn))] and row.version == drawn[-1]
        assert len(drawn) <= max_tokens and (row.stop == Stop.LENGTH) == (row.tokens[-1] != 2)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("window", [1, 4, 7])
def test_a_real_model_s_tokens_do_not_depend_on_the_window(family, fixed, window):
    """The same tokens; log-probs up to the rounding of a prefill against a decoding step."""
    model = toys.model(family)
    sampler = TorchSampler(model, stop=[2], pad=0, fixed=fixed)
    sampling = Sampling(max_tokens=16, temperature=0.9, top_p=0.95)
    whole = in_windows(sampler, 16, sampling, ["ab", "longer", "c"])
    cut = in_windows(sampler, window, sampling, ["ab", "longer", "c"])
    assert [row.tokens for row in whole] == [row.tokens for row in cut]
    assert len({tuple(row.tokens) for row in whole}) > 5
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(torch.tensor(one.logp_old), torch.tensor(other.logp_old), atol=2e-5, rtol=0)


def test_a_row_at_the_end_of_the_context_has_ended():
    model = toys.model("llama")
    sampler = TorchSampler(model, stop=[], pad=0)
    sampler.context = 8
    rows = in_windows(sampler, 2, Sampling(max_tokens=50), ["abc"])
    assert all(len(row.tokens) == 8 and row.stop == Stop.LENGTH for row in rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**62 - 1), st.integers(0, 5000), st.integers(1, 50))
def test_numbers_of_a_stream_depend_on_their_place_alone(stream, first, count):
    both = stream_points(torch.tensor([stream, 77]), torch.tensor([0, first]), first + count)
    part = stream_points(torch.tensor([stream]), torch.tensor([first]), count)
    assert torch.equal(both[:1, first:], part) and float(both.min()) >= 0 and float(both.max()) < 1


def test_numbers_of_streams_are_uniform_and_unrelated():
    points = stream_points(torch.arange(400), torch.zeros(400, dtype=torch.int64), 400).double()
    assert abs(float(points.mean()) - 0.5) < 0.004 and abs(float(points.var()) - 1 / 12) < 0.001
    correlations = torch.corrcoef(points).fill_diagonal_(0).abs()
    assert float(correlations.max()) < 0.3 and abs(float((points[:, 1:] * points[:, :-1]).mean()) - 0.25) < 0.004


def trainer(folder, start, *more):
    folder.mkdir(parents=True, exist_ok=True)
    return toys.trainer(folder, start, toys.recipe(folder), *CUT, *more)


def run_watched(run):
    """The weights by version, the rows of each step and the columns that it learned from."""
    weights, rows, columns = {}, [], []
    collect, learn = run.collector.collect, run.learner.learn

    def collected(step):
        weights[run.learner.updates_done] = copy.deepcopy(run.learner.model)
        batch = collect(step)
        rows.append(batch.rows)
        return batch

    run.collector.collect = collected
    run.learner.learn = lambda updates: columns.append(own_update(updates).columns) or learn(updates)
    run.run()
    return weights, rows, columns


def test_groups_wait_for_their_last_row_and_tokens_keep_their_version_s_log_probs(tmp_path, start):
    weights, rows, _ = run_watched(trainer(tmp_path, start))
    seen = set()
    for step, batch in enumerate(rows):
        assert batch and all(row.stop in (Stop.END, Stop.LENGTH) and row.score is not None for row in batch)
        groups = [row.group for row in batch]
        assert sorted(groups) == groups and all(groups.count(group) == 4 for group in groups)
        packed = pack(batch, step=0, total_steps=7, version=step)
        for version in {v for row in batch for v in row.versions}:
            with torch.no_grad():
                logp = Policy(weights[version], Sampling(temperature=1.3)).logp(packed["token"], packed["mask"]).logp
            drawn_by = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.versions) for row in batch], True, -1)
            own = packed["mask"] & (drawn_by == version)
            assert torch.allclose(logp[own], packed["logp_old"][own], atol=1e-4)
        assert torch.equal(packed["sampled_now"] & packed["mask"], packed["mask"] & (drawn_by == step))
        newest = torch.tensor([max(row.versions) for row in batch])[:, None]
        assert torch.equal(packed["in_window"] & packed["mask"], packed["mask"] & (drawn_by == newest))
        assert packed["on_policy"].all() and not packed["unfinished"].any()
        seen |= {(row.uid, row.stream) for row in batch}
    assert len(seen) == sum(map(len, rows)), "a row trains once"
    metrics = [values for _, values in toys.history(tmp_path / "work")]
    assert max(v["mismatch/max"] for v in metrics if "mismatch/max" in v) < 1e-3, "tokens of this step's weights alone"
    assert metrics[-1]["window/age_max"] >= 1 and max(v["window/unfinished_rows"] for v in metrics) > 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["presets=[t_ppo]", "rlvr.window=0.25"], ["presets=[dapo_carry]"]])
def test_unfinished_rows_survive_a_restart_to_the_byte(tmp_path, start, more):
    trainer(tmp_path / "whole", start, *more).run()
    toys.stop(trainer(tmp_path / "broken", start, *more), 4, "credit")
    committed = checkpoint.load(tmp_path / "broken/work/checkpoints")
    assert committed["methods"][OPEN_ROWS], "rows are open at the commit"
    again = trainer(tmp_path / "broken", start, *more)
    again.run()
    assert again.start_step == 4 and toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "broken/work")


@pytest.mark.slow
def test_t_ppo_trains_each_window_once_and_its_critic_on_rows_that_have_ended(tmp_path, start):
    run = trainer(tmp_path, start, "presets=[t_ppo]", "rlvr.steps=9")
    assert run.settings.window_tokens == 2, "the recipe beats the preset's quarter"
    fitted = []
    critic = run.learner.providers["critic"]
    outcome_tokens = critic.outcome_tokens
    critic.outcome_tokens = lambda columns: fitted.append(outcome_tokens(columns)) or fitted[-1]
    _, rows, columns = run_watched(run)
    trained: dict[tuple[str, int], int] = {}
    ended = {}
    for batch, learned, mask in zip(rows, columns, fitted, strict=True):
        assert len(batch) <= 16
        for i, row in enumerate(batch):
            key = (row.uid, row.stream)
            share = learned["loss_share"][i]
            assert 0 < int(share.sum()) <= 2 and torch.equal(share > 0, learned["in_window"][i] & learned["mask"][i])
            trained[key] = trained.get(key, 0) + int(share.sum())
            open_row = row.stop == Stop.WINDOW
            assert bool(learned["unfinished"][i]) == open_row and (row.score is None) == open_row
            assert torch.equal(mask[i], learned["mask"][i] & (not open_row)), "all tokens of a row that has ended"
            if not open_row:
                ended[key] = sum(role == Role.POLICY for role in row.role)
    assert any(len(row.versions) and len(set(row.versions)) > 1 for batch in rows for row in batch)
    assert len(ended) > 10 and {key: trained[key] for key in ended} == ended, "each token trains in one step"
    drawn = [b["values"]["rollout/rows"] for b in toys.spool(tmp_path / "work") if b["kind"] == "metrics"]
    assert sum(drawn) == len(ended), "only rows that have ended are counted"


@pytest.mark.slow
def test_windows_that_are_carried_over_train_in_the_step_that_has_them(tmp_path, start):
    """They had no share in the loss: older weights than the step's drew them. Nothing trains twice, and only new tokens are compared."""
    carry = "rlvr.sampling_schedule={kind: dynamic_carry, max_draws: 2, max_age: 3}"
    run = trainer(tmp_path, start, "presets=[t_ppo]", "rlvr.steps=12", carry)
    _, rows, columns = run_watched(run)
    trained: dict[tuple[str, int, int], int] = {}
    carried = 0
    for batch, learned in zip(rows, columns, strict=True):
        for i, row in enumerate(batch):
            share = learned["loss_share"][i]
            assert 0 < int(share.sum()) <= 2
            carried += not learned["sampled_now"][i].any()
            for place in share.nonzero().flatten().tolist():
                key = (row.uid, row.stream, place)
                trained[key] = trained.get(key, 0) + 1
    assert carried and set(trained.values()) == {1}
    assert all(v.get("mismatch/max", 0) < 1e-3 for _, v in toys.history(tmp_path / "work"))


@pytest.mark.slow
def test_answers_before_the_first_step_are_drawn_to_their_ends(tmp_path, start, monkeypatch):
    """`shaping: par` compares with whole answers; it got the scores of first windows."""
    made, stops = trainer(tmp_path, start, "rlvr.shaping=[par]"), []
    sample = made.collector.sample

    def noted(*asked):
        rows = sample(*asked)
        stops.extend(row.stop for row in rows)
        return rows

    monkeypatch.setattr(made.collector, "sample", noted)
    made.step(0)
    assert set(stops) <= {Stop.END, Stop.LENGTH} and stops
    assert made.collector.open.unfinished(), "the step's own rows are cut"


@pytest.mark.slow
def test_with_a_server_that_is_a_step_ahead(tmp_path, start, monkeypatch):
    monkeypatch.setattr(server_endpoint, "PATIENCE", (0.01, 0.01))
    server = StandIn(tmp_path / "served")
    where = f"rlvr.sampler={{urls: ['{server.url}'], weights: {server.weights}}}"
    made = trainer(tmp_path, start, where, "rlvr.staleness=1")
    made.run()
    server.shutdown()
    metrics = [values for _, values in toys.history(tmp_path / "work")]
    assert len(metrics) == 7 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert max(v["window/age_max"] for v in metrics) >= 1 and metrics[-1]["staleness/steps"] == 1
    assert toys.unlisted_metrics(made.settings, {name for values in metrics for name in values}) == set()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["rlvr.rollout=tree"], "rollout: tree cannot do. Use rollout: single_turn"),
        (["rlvr.objective=reinforce"], "rlvr.window: 2 trains on tokens.*reinforce has no importance ratio"),
        (["rlvr.old_logp=trainer"], "nothing corrects for it. Add credit"),
        (["rlvr.processes=2"], "Set processes: 1"),
        (["rlvr.objective=hapo"], "hapo changes the temperature"),
        (["rlvr.prompting={kind: paraphrase, template: '{prompt}'}"], "paraphrase compares rows of several prompts"),
        (["rlvr.window=0"], "greater than 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(tmp_path, more, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), [*CUT, *more]))
