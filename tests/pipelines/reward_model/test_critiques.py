"""CLoud: the reward is read after a critique, the record's own or one that the model wrote; a run samples and reads its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest
import torch
import toys
from reward_pairs import begin, job, pairs_file, recipe, trainer
from reward_pairs import scores as scores_of

from pipelines.base.errors import DataError, ModelError, RecipeError
from pipelines.base.files import contents
from pipelines.contract.catalogue import bind
from pipelines.contract.lent_models import Answered, ScoredCritique
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import chat
from pipelines.data.pair_records import Pair, read_pairs
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.engine import models
from pipelines.engine.answers import Answers
from pipelines.engine.critiques import CritiqueSampler, critique_prompt
from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save
from pipelines.recipe.check import check
from pipelines.reward_model.pack import answers, critique_tokens

RECORDS = {"instruction": "well?", "sampling": {"temperature": 0, "max_tokens": 8}}
OWN = {"instruction": "well?", "source": "own", "sampling": {"max_tokens": 6}}
CHANGES = {"loss": "cloud", "critique": RECORDS, "steps": 60, "optimizer": {"learning_rate": 0.01}}


@pytest.fixture(scope="module")
def critiqued(tmp_path_factory):
    """As `begun`, with pairs that hold critiques: `say` of each chosen answer, `yay` of each rejected one."""
    folder = tmp_path_factory.mktemp("critiques")
    return begin(folder, pairs_file(folder, critiques=True))


@pytest.fixture(scope="module")
def trained(critiqued, tmp_path_factory):
    """A reward model that learned from the records' critiques, and its metrics."""
    work = tmp_path_factory.mktemp("cloud")
    run = trainer(critiqued, work, **CHANGES)
    return work / "out" / "model", run.run()


def scorer_of(folder):
    return RewardScorer(folder, Model(path=str(folder)), budget=512, field="f")


def test_a_critique_follows_its_own_answer_and_never_sees_the_other(critiqued):
    tokenizer = models.load_tokenizer(critiqued / "model")
    pair = Pair("x", [{"role": "user", "content": "hi"}], "abc", "efg", critiques=("gaba", "sayday"))
    row = critique_tokens(pair, tokenizer, None, None, "well?", written=True)
    first, second = (tokenizer.decode(ids) for ids in (row.chosen, row.rejected))
    assert "abc" in first and "efg" not in first and "efg" in second and "abc" not in second
    texts = [tokenizer.decode(ids[start:-1]) for ids, start in zip((row.chosen, row.rejected), row.starts, strict=True)]
    assert texts == ["gaba", "sayday"] and row.chosen[-1] == tokenizer.convert_tokens_to_ids(
        chat.end_of_turn(tokenizer)
    )
    batch, _ = answers([row], tokenizer.pad_token_id)
    assert batch.mask.sum(1).tolist() == [6, 8], "the critique, its end and the position after it"
    assert row.lengths == (4, 4), "of the answers, their end token included"
    with pytest.raises(DataError, match=r"record x has no critiques"):
        critique_tokens(Pair("x", pair.prompt, "a", "b"), tokenizer, None, None, "well?", written=True)


def test_curated_pairs_hold_their_critiques(critiqued):
    assert {pair.critiques for pair in read_pairs(critiqued / "data", "heldout")} == {("say", "yay")}


@pytest.mark.slow
def test_it_writes_critiques_and_scores_after_them(trained):
    """Through the real trainer: the head reads the critique, and the saved language head writes what it was taught."""
    folder, metrics = trained
    assert metrics["accuracy"] > 0.9
    scorer = scorer_of(folder)
    assert scorer.critiques and (folder / "language_head.safetensors").is_file()
    prompt = [{"role": "user", "content": "say 3"}]
    told = scorer.score_with_critiques([Answered(prompt, "abca"), Answered(prompt, "efgh")], 2, seed=0)
    assert [[critique.text for critique in each] for each in told] == [["say"] * 2, ["yay"] * 2]
    good, bad = told
    assert good[0] == good[1] and good[0].score > bad[0].score, "greedy critiques are all equal"
    with pytest.raises(ModelError, match="critiqued_model"):
        scorer.score([[1, 2]], [1])


def test_the_saved_language_model_is_the_trained_one(critiqued, tmp_path):
    """Its critiques are those of the network that was saved, for a head that is tied and for one of its own."""
    tokenizer = models.load_tokenizer(critiqued / "model")
    for family in ("llama", "gemma2"):
        net = RewardNetwork(toys.model(family), 1, seed=0, text=True)
        about = {"critique": {"instruction": "well?", "sampling": {"temperature": 1.0, "max_tokens": 5}}}
        save(net, tokenizer, tmp_path / family, about, language_head=True)
        scorer = scorer_of(tmp_path / family)
        prompt = [{"role": "user", "content": "say 3"}]
        (told,) = scorer.score_with_critiques([Answered(prompt, "abc")], 3, seed=4)
        ids = chat.render_prompt(tokenizer, critique_prompt(prompt, "abc", "well?"))
        writer = CritiqueSampler(net.policy.causal, tokenizer, dtype="float32")
        (drawn,) = writer.write([ids], 3, Sampling(max_tokens=5), seed=4)
        assert [c.text for c in told] == [chat.completion_text(tokenizer, c.tokens) for c in drawn]
        assert len({c.text for c in told}) > 1, "sampled ones differ"
        rows = [[*ids, *c.tokens] for c in drawn]
        scores, _ = scores_of(net, Answers.of(rows, [len(ids)] * 3, tokenizer.pad_token_id), 512)
        assert [c.score for c in told] == pytest.approx(scores.detach()[:, 0].tolist(), abs=1e-4)


class Lends:
    """A reward model whose critiques are written down here."""

    critiques = True

    def __init__(self, scores, stop=Stop.END):
        self.scores, self.stop = scores, stop

    def reward_model(self, path, field):
        return self

    def score_with_critiques(self, answered, count, *, seed):
        return [[ScoredCritique("t", score, self.stop) for score in self.scores[:count]] for _ in answered]


def rollout(stop=Stop.END):
    return Trajectory(
        uid="u", group=0, tokens=[1, 2], role=[0, 3], logp_old=[0.0, -1.0], max_tokens=2, stop=stop, version=0, text="4"
    )


@pytest.mark.parametrize(
    ("scores", "score"), [([0.7, 1.1, 0.9, -0.2], 0.625), ([float("nan"), 1.0], 1.0), ([float("nan")], None)]
)
def test_the_reward_is_the_mean_over_the_critiques(scores, score):
    """The sheet's four critiques; one whose conversation did not fit is left out, and a completion with none is unscored."""
    problems = {"u": Problem(uid="u", prompt=[], answer="4", verifier="number", source="s", licence="l")}
    reward = bind("rlvr.reward", {"kind": "critiqued_model", "model": "a/b", "critiques": len(scores)}).fn
    reward.connect(Lends(scores, Stop.LENGTH))
    rows = [rollout(), rollout(Stop.ERROR)]
    reward.score(rows, problems)
    assert rows[0].score == pytest.approx(score) and rows[1].score is None
    assert rows[0].correct is True and rows[0].components["critique_cut"] == 1
    if score == 0.625:
        error = rows[0].components["critique_std"] * (4 / 3) ** 0.5 / 2
        assert error == pytest.approx(0.286865, abs=1e-6), "the sheet's standard error of the mean"


@pytest.mark.slow
def test_a_plain_model_and_one_with_critiques_are_not_taken_for_each_other(trained, critiqued, tmp_path):
    tokenizer = models.load_tokenizer(critiqued / "model")
    save(RewardNetwork(toys.model(), 1, seed=0, text=False), tokenizer, tmp_path / "plain", {})

    class Hands:
        def reward_model(self, path, field):
            return scorer_of(Path(path))

    with pytest.raises(RecipeError, match=r"plain writes no critiques"):
        bind("rlvr.reward", {"kind": "critiqued_model", "model": str(tmp_path / "plain")}).fn.connect(Hands())
    with pytest.raises(RecipeError, match=r"writes a critique before it scores"):
        bind("rlvr.reward", {"kind": "model", "model": str(trained[0])}).fn.connect(Hands())


@pytest.mark.slow
def test_a_policy_is_trained_by_critiques(tmp_path_factory, tmp_path):
    """RLVR's own loop, with two sampled critiques a completion, stopped and taken up again: the same bytes."""
    begun = toys.start(tmp_path_factory.mktemp("policy"), overrides=["sft.steps=10"])
    base = models.load_model(begun / "sft/out/model", Model(path="x"))
    tokenizer = models.load_tokenizer(begun / "sft/out/model")
    about = {"critique": {"instruction": "?", "sampling": {"max_tokens": 4}}}
    save(RewardNetwork(base, 1, seed=1, text=False), tokenizer, begun / "rm", about, language_head=True)
    reward = f"rlvr.reward={{kind: critiqued_model, model: {begun}/rm, critiques: 2}}"
    overrides = ("rlvr.steps=3", reward, "rlvr.commit.every=1")
    through = toys.trainer(tmp_path / "a", begun, toys.recipe(tmp_path), *overrides)
    through.run()
    toys.run_stopped(lambda: toys.trainer(tmp_path / "b", begun, toys.recipe(tmp_path), *overrides))
    assert contents(tmp_path / "a/work/out") == contents(tmp_path / "b/work/out")
    assert any("critique_std" in name for _, values in toys.history(tmp_path / "a/work") for name in values)


@pytest.mark.slow
@pytest.mark.long
def test_own_critiques_survive_a_kill(begun, tmp_path):
    """SIGKILL after the starting model wrote its critiques; the run that goes on trains on the same ones."""
    changes = {"loss": "cloud", "critique": OWN, "steps": 12, "commit": {"every": 2}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forks.run(job(begun, whole, **changes), cwd=toys.ROOT, check=True, capture_output=True)
    command = job(begun, killed, **changes)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL)
    while len([line for line in spooled(killed) if line["kind"] == "metrics"]) < 4:
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(whole / "out") == contents(killed / "out")


def spooled(work):
    return toys.spool(work) if (work / "spool.jsonl").exists() else []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss": "cloud"}, r"judge\.critique: cloud reads critiques, and none are asked for"),
        ({"loss": "grm", "critique": RECORDS}, r"judge\.loss: grm regularises by the text of the answers"),
        ({"critique": {"sampling": {"max_tokens": 64}}}, r"max_tokens leaves no room for an answer in max_length tokens"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))


def test_the_language_head_gets_no_gradient_from_the_ranking_alone(begun, tmp_path):
    """`weight: 0` is plain Bradley-Terry after a critique."""
    run = trainer(begun, tmp_path, loss={"kind": "cloud", "weight": 0}, critique=OWN)
    run.begin()
    batch = run.pairs[:4]
    loss, rewards = run._summed(batch, range(4))
    chosen, rejected = rewards[:, 0].chunk(2)
    assert loss == pytest.approx(float(-torch.nn.functional.logsigmoid(chosen - rejected).mean()), abs=1e-5)
    assert all(pair.starts[0] < len(pair.chosen) for pair in batch), "every critique has a token"
    assert sys.getsizeof(run.critiques) and len(run.critiques["train"]) == len(run.pairs)
