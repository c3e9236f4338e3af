"""The scoring hook: the same numbers as the trainer's own, whatever is asked together."""

from __future__ import annotations

import copy
import random
import shutil
import sys
import threading

import forks
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandIn

from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import RolloutContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.scorer import REFERENCE, NoScorer, Passage, TokenStatistics
from pipelines.contract.streams import Streams
from pipelines.engine import parallel, server_endpoint
from pipelines.engine.in_process import InProcess
from pipelines.engine.policy import Policy
from pipelines.recipe.read import read_recipe
from pipelines.rlvr import text_scorer
from pipelines.rlvr.text_scorer import FrozenModels, TextScorer

MODEL = toys.model(vocab=20)


def scorer(tmp_path, model=MODEL, budget=64, *overrides):
    rlvr = read_recipe(toys.recipe(tmp_path), list(overrides)).rlvr
    return TextScorer(
        rlvr, lambda: model, tokenizer=None, start="", frozen=FrozenModels(Model(path=".")), world=parallel.World(),
        budget=lambda: budget, engine=InProcess(),
    )  # fmt: skip


def by_hand(passage, model=MODEL):
    ids = torch.tensor([[*passage.context, *passage.text]])
    with torch.no_grad():
        logp = model(ids).logits[0].float().log_softmax(-1)
    start = len(passage.context)
    return torch.stack([logp[start - 1 + i, token] for i, token in enumerate(passage.text)])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(3, 6), min_size=1, max_size=12), st.lists(st.integers(3, 6), max_size=8)),
        max_size=12,
    ),
    st.sampled_from([8, 40, 4096]),
)
def test_it_is_the_model_s_own_log_probability(tmp_path_factory, pairs, budget):
    """Also of texts that begin alike, are equal or empty, and in passes of any size."""
    passages = [Passage(context, text) for context, text in pairs]
    own = scorer(tmp_path_factory.mktemp("recipe"), MODEL, budget).log_probs(passages)
    assert [len(values) for values in own] == [len(text) for _, text in pairs]
    for passage, values in zip(passages, own, strict=True):
        if passage.text:
            torch.testing.assert_close(values, by_hand(passage), atol=2e-5, rtol=0)


def test_what_is_held_in_memory_does_not_grow_with_the_passages(tmp_path, monkeypatch):
    draw = random.Random(0)
    passages = [Passage([3, draw.randint(3, 19)], [draw.randint(3, 19) for _ in range(6)]) for _ in range(300)]
    widest, padded = 0, text_scorer.padded

    def watched(rows, width, fill, dtype):
        nonlocal widest
        widest = max(widest, len(rows) * width)
        return padded(rows, width, fill, dtype)

    monkeypatch.setattr(text_scorer, "padded", watched)
    values = scorer(tmp_path, MODEL, 16).log_probs(passages)
    assert 0 < widest <= 16 * text_scorer.CHUNK_PASSES
    torch.testing.assert_close(values[77], by_hand(passages[77]), atol=2e-5, rtol=0)


def test_a_passage_beyond_the_context_has_no_value(tmp_path):
    model = copy.copy(MODEL)
    limit = int(model.config.max_position_embeddings)
    model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = 6
    too_long, fits = scorer(tmp_path, model).log_probs([Passage([3, 4], [5] * 5), Passage([3, 4], [5] * 4)])
    assert too_long.isnan().all() and len(too_long) == 5 and fits.isfinite().all() and limit > 6


def test_a_passage_needs_a_context(tmp_path):
    with pytest.raises(ValueError, match="at least one token of context"):
        scorer(tmp_path).log_probs([Passage([], [3])])


def test_any_statistics_of_the_logits_may_be_asked_for(tmp_path):
    top = TokenStatistics(
        3, lambda logits, ids, table: torch.cat([logits.topk(2).values, table.norm(dim=1)[ids][:, None]], 1)
    )
    (values,) = scorer(tmp_path).statistics([Passage([3, 7, 4], [9, 5])], top)
    with torch.no_grad():
        logits = MODEL(torch.tensor([[3, 7, 4, 9, 5]])).logits[0, 2:4]
    norms = MODEL.get_output_embeddings().weight.detach().norm(dim=1)[[9, 5]]
    torch.testing.assert_close(values, torch.cat([logits.topk(2).values, norms[:, None]], 1), atol=2e-5, rtol=0)


def test_scoring_changes_nothing(tmp_path):
    model = copy.deepcopy(MODEL).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    scorer(tmp_path, model).log_probs([Passage([3, 4], [5, 6])])
    assert model.training and torch.equal(drawn, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_scores_in_evaluation():
    context = RolloutContext(None, Sampling(), 1, Streams(0), False, version=0, tokenizer=None)
    for call in (context.scorer.log_probs, lambda _: context.scorer.tokenizer()):
        with pytest.raises(RuntimeError, match="while a policy is trained"):
            call([Passage([1], [2])])
    assert isinstance(context.scorer, NoScorer)


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_s_scorers_know_policy_reference_and_other_models(tmp_path, start, lora):
    """The policy's numbers are those the sampler reported; the reference stays where the run began; a path is another model."""
    more = ["rlvr.lora={rank: 4}"] if lora else []
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)
    rows, _ = made.collect(0)
    first = [row.role.index(3) for row in rows]
    passages = [Passage(row.tokens[:at], row.tokens[at:]) for row, at in zip(rows, first, strict=True)]
    folder = str(start / "sft/out/model")
    for own in (made.learner.scorer, made.collector.scorer):
        for row, at, logp in zip(rows, first, own.log_probs(passages), strict=True):
            torch.testing.assert_close(logp, torch.tensor(row.logp_old[at:]), atol=1e-4, rtol=0)
    with torch.no_grad():
        for weight in made.learner.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight) * weight.requires_grad)
    for own in (made.learner.scorer, made.collector.scorer):
        now, reference, path = (torch.cat(own.log_probs(passages, model=m)) for m in ("policy", REFERENCE, folder))
        assert (now - reference).abs().max() > 1e-3
        torch.testing.assert_close(reference, path, atol=2e-5, rtol=0)
        assert own.tokenizer(folder).get_vocab() == own.tokenizer().get_vocab()
    policy = Policy(made.learner.weights.full, Sampling())
    tokens = torch.tensor([rows[0].tokens])
    mask = torch.arange(tokens.shape[1])[None] >= first[0]
    torch.testing.assert_close(
        made.learner.scorer.log_probs(passages[:1])[0], policy.logp(tokens, mask).logp[0, first[0] :].detach(), atol=2e-5, rtol=0,
    )  # fmt: skip


def test_threads_that_ask_at_once_have_a_model_loaded_once_and_whole(tmp_path, start):
    """As trainer and sampler do with `rlvr.staleness`; transformers leaves the head of the second model that it reads meanwhile untied."""
    folder, other = start / "sft/out/model", tmp_path / "other"
    shutil.copytree(folder, other)
    for paths in [(folder, folder), (folder, other)] * 3:
        frozen, loaded, begin = FrozenModels(Model(path=".")), {}, threading.Barrier(2)

        def ask(number, paths=paths, frozen=frozen, loaded=loaded, begin=begin):
            begin.wait()
            loaded[number] = frozen.policy(str(paths[number]))

        threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (loaded[0] is loaded[1]) == (paths[0] == paths[1])
        weights = [policy.model.state_dict() for policy in loaded.values()]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_models_that_score_are_there_before_anything_is_sampled(tmp_path, start):
    """A model that is read while the other thread computes sets torch's default data type for that one too."""
    folder, base = str(start / "sft/out/model"), str(start / "sft/out/base")
    reward = f"rlvr.reward=[verifier, {{kind: listener, weight: 0.5}}, {{kind: ra3, model: {base}, weight: 0.1}}]"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[lm_reward]", reward)
    loaded = dict(made.learner.frozen._policies)
    assert set(loaded) == {folder, base}
    made.step(0)
    assert made.learner.frozen._policies == loaded


@pytest.mark.slow
def test_rows_sampled_ahead_are_scored_by_the_weights_that_drew_them(tmp_path, start, monkeypatch):
    """The collector's scorer says what the sampler reported, whatever the trainer has learned since; the learner's does not."""
    monkeypatch.setattr(server_endpoint, "PATIENCE", (0.01, 0.01))
    server = StandIn(tmp_path / "served")
    more = (
        f"rlvr.sampler={{urls: ['{server.url}'], weights: {server.weights}}}", "rlvr.staleness=1", "rlvr.steps=4", "rlvr.old_logp=trainer",
        "rlvr.credit=[{kind: truncated_is}]", "rlvr.optimizer.learning_rate=0.005",
        "rlvr.reward=[verifier, {kind: listener, model: policy, weight: 0.5}]",
    )  # fmt: skip
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)
    differences = []
    reward = made.update.reward.fn
    score = reward.score

    def checked(rows, problems):
        score(rows, problems)
        first = [row.role.index(3) for row in rows]
        passages = [Passage(row.tokens[:at], row.tokens[at:]) for row, at in zip(rows, first, strict=True)]
        reported = torch.cat([torch.tensor(row.logp_old[at:]) for row, at in zip(rows, first, strict=True)])
        differences.append(float((torch.cat(made.collector.scorer.log_probs(passages)) - reported).abs().max()))

    reward.score = checked
    try:
        made.run()
    finally:
        server.shutdown()
    assert len(differences) == 4 and max(differences) < 1e-3
    staleness = [values["staleness/max"] for _, values in toys.history(tmp_path / "work") if "staleness/max" in values]
    assert max(staleness) > 1e-2, "the weights did move"


@pytest.mark.slow
def test_two_processes_score_their_own_rows_and_share_the_columns(tmp_path, start):
    """Each rank scores the rows that it rolled out, and its part of what the providers ask; both weights are whole ones."""
    more = ("presets=[progrpo]", "rlvr.reward=[verifier, {kind: listener, model: policy, weight: 0.5}]")
    work = toys.job(tmp_path / "w", start, "rlvr.processes=2", "rlvr.steps=2", *more)
    done = forks.run(
        [sys.executable, "-m", "pipelines.stage.launch", "pipelines.rlvr", work],
        capture_output=True, text=True, timeout=240, env=toys.environment(OMP_NUM_THREADS="1"), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
    lines = [line["values"] for line in toys.spool(work) if line["kind"] == "metrics"]
    assert len(lines) == 2 and max(values["mismatch/max"] for values in lines) < 1e-4
    assert all(0 < values["reward_component/listener"] < 1 for values in lines)
