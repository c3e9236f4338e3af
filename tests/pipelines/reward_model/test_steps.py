"""Learning from labelled steps: the loss, where rewards are read, what the card says, exact resume, what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import reward_pairs
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import tokenizer

from pipelines.base.errors import DataError, RecipeError
from pipelines.base.files import contents, read_json
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data import dataset
from pipelines.data.step_records import StepAnswer, steps_of
from pipelines.engine.answers import Answers
from pipelines.engine.reward_model import RewardNetwork, RewardScorer
from pipelines.recipe.check import check
from pipelines.reward_model import step_card
from pipelines.reward_model.settings import RewardModel
from pipelines.reward_model.steps import StepTrainer, tokens_of
from pipelines.stage.report import Report

SETTINGS = reward_pairs.SETTINGS | {"loss": "step_bce", "step_labels": {"separator": "-"}, "evaluate_every": 30}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Curated answers in steps and a random model of their tokenizer, in `data` and `model`."""
    folder = tmp_path_factory.mktemp("steps")
    return reward_pairs.begin(folder, reward_pairs.steps_file(folder))


def trainer(labelled, work, **changes):
    (work / "out").mkdir(parents=True, exist_ok=True)
    model = str(labelled / "model")
    return StepTrainer(
        RewardModel.model_validate(SETTINGS | changes), Model(path=model), data=labelled / "data", out=work / "out",
        work=work, report=Report(work, committed=True), seed=3, start=model,
    )  # fmt: skip


@given(st.floats(-8, 8), st.floats(0, 1))
def test_the_loss_is_the_cross_entropy_of_two_labels(reward, label):
    """As a classifier of tokens with the labels incorrect and correct has it (TRL's PRMTrainer), whose logits differ by the reward."""
    free = torch.tensor([reward], dtype=torch.float64, requires_grad=True)
    loss = bind("reward_model.loss", "step_bce")(
        {"step_reward": free, "step_label": torch.tensor([label], dtype=torch.float64)}
    )
    logits = torch.tensor([[1.5, 1.5 + reward]], dtype=torch.float64)
    soft = torch.tensor([[1 - label, label]], dtype=torch.float64)
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, soft).item(), abs=1e-9)
    loss.sum().backward()
    assert free.grad.item() == pytest.approx(torch.sigmoid(free).item() - label, abs=1e-9)


def test_the_sheet_s_value():
    """AgentPRM's worked example: a target of 0.6 and a probability of 0.7."""
    loss = bind("reward_model.loss", "step_bce")(
        {"step_reward": torch.tensor([0.7]).logit(), "step_label": torch.tensor([0.6])}
    )
    assert loss.item() == pytest.approx(0.695594, abs=1e-6)


def test_steps_end_with_their_separator_and_the_answer_with_its_end_token():
    own, prompt = tokenizer(), [{"role": "user", "content": "q"}]
    answer = StepAnswer("u", prompt, ("ab", "cd-", "e"), (1.0, None, 0.25))
    steps = tokens_of(answer, own, None, None, "-")
    read = [own.decode(steps.ids[: end + 1]) for end in steps.ends]
    whole = own.decode(steps.ids)
    assert read[0].endswith("ab-") and whole.startswith(read[1]) and steps.ids[steps.ends[1]] == own.eos_token_id
    assert steps.labels == [1.0, 0.25] and steps.places == [0, 2] and "ab-cd-e" in whole
    cut = tokens_of(StepAnswer("u", prompt, ("ab", "c"), (1.0, 0.0), cut=True), own, None, None, "-")
    assert own.decode(cut.ids).endswith("ab-c") and cut.ends[-1] == len(cut.ids) - 1
    assert tokens_of(StepAnswer("u", prompt, ("ab",), (None,)), own, None, None, "-") is None


def test_answers_are_compared_where_their_last_step_is_labelled():
    """The second one's only label is of its first step, and says nothing of its end."""
    own, prompt = tokenizer(), [{"role": "user", "content": "q"}]
    answers = [StepAnswer("u", prompt, ("ab", "c"), labels) for labels in ((1.0, 0.0), (1.0, None))]
    judged = [tokens_of(answer, own, None, None, "-").judged for answer in answers]
    assert judged == [True, False]
    p, labels = torch.tensor([0.9, 0.1, 0.8]), torch.tensor([1.0, 0.0, 1.0])
    assert step_card.measures(p, labels, [2, 1], ["q", "q"])["best_of_n/min"] == 1
    assert "best_of_n/min" not in step_card.measures(p, labels, [2, 1], ["q", "q"], None, judged)


def test_steps_that_end_in_one_token_have_no_places_of_their_own():
    own, prompt = copy.deepcopy(tokenizer()), [{"role": "user", "content": "q"}]
    own.add_tokens(["a-b-"])
    told = StepAnswer("u", prompt, ("a", "b", "c"), (1.0, 0.0, 0.0))
    assert tokens_of(told, own, None, None, "-") is None
    steps = tokens_of(replace(told, labels=(1.0, None, 0.0)), own, None, None, "-")
    assert own.decode(steps.ids[steps.ends[0]]) == "a-b-", "one of them alone has"


@pytest.mark.parametrize("budget", [1, 4096])
def test_rewards_within_a_row_are_those_of_its_prefixes(budget):
    """In one pass over shared prefixes or many over single rows: each is what a row that ends there gets, and so is the gradient."""
    network = RewardNetwork(toys.model(vocab=40), 2, seed=0, text=False)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 40, (3, 9), generator=draw)
    tokens[1, :5] = tokens[0, :5]
    places = torch.zeros(3, 9, dtype=torch.bool)
    for row, ends in enumerate([(2, 4, 8), (4,), (0, 6)]):
        places[row, list(ends)] = True
    rewards = reward_pairs.scores_at(network, tokens, places, budget)
    alone = [
        reward_pairs.scores(network, Answers.of([tokens[row, : end + 1].tolist()], [1], 0), 4096)[0]
        for row, end in places.nonzero().tolist()
    ]
    torch.testing.assert_close(rewards, torch.cat(alone), atol=1e-5, rtol=1e-5)
    weights = torch.randn(6, 2, generator=draw)
    gradients = []
    for values in (rewards, torch.cat(alone)):
        network.zero_grad()
        (values * weights).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_learns_and_its_checkpoint_scores_what_its_card_says(labelled, tmp_path):
    run = trainer(labelled, tmp_path, steps=60, optimizer={"learning_rate": 0.01})
    metrics = run.run()
    assert metrics["accuracy"] > 0.9 and metrics["first_error_f1"] > 0.8 and metrics["loss_heldout"] < 0.3
    assert metrics["best_of_n/last"] > metrics["best_of_n/mean"] > 0
    lines = [line["values"] for line in toys.spool(tmp_path) if line.get("kind") == "metrics"]
    assert lines[0]["loss/train"] > lines[-1]["loss/train"] and lines[-1]["accuracy/train"] > 0.8
    assert lines[-1]["accuracy/heldout"] == pytest.approx(metrics["accuracy"])
    about = read_json(tmp_path / "out/report/reward_model.json")
    assert about["heldout"]["accuracy"] == metrics["accuracy"] and about["answers"] > 150
    assert "| held-out steps |" in (tmp_path / "out/report/card.md").read_text()
    folder = tmp_path / "out" / "model"
    scorer = RewardScorer(str(folder), Model(path=str(folder)), budget=4096, field="x")
    assert scorer.separator == "-"
    hits = []
    for each in run.heldout:
        scores = scorer.score([each.ids[: end + 1] for end in each.ends], [1] * len(each.ends))
        hits += [(score >= 0) == (label >= 0.5) for score, label in zip(scores[:, 0], each.labels, strict=True)]
    assert sum(hits) / len(hits) == pytest.approx(metrics["accuracy"])


def test_a_step_is_one_update_however_it_is_divided(labelled, tmp_path):
    """The mean is over the labelled steps of the update, not over answers or passes."""
    gradients = []
    for budget in (128, 4096):
        run = trainer(labelled, tmp_path / str(budget), micro_batch_tokens=budget, heads=2)
        run.stepper.step = lambda step: {}
        metrics = run.make_step(0)
        gradients.append(torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)
    batch = [run.answers[i] for i in run.epochs.step(0)]
    scored = run._scored(batch)
    losses = [run.loss({"step_reward": head, "step_label": run._labels(batch)}).mean() for head in scored.unbind(1)]
    assert metrics["loss/train"] == pytest.approx(float(sum(losses).detach()) / 2, abs=1e-5)


def test_a_stopped_run_ends_in_the_same_bytes(labelled, tmp_path):
    trainer(labelled, tmp_path / "whole", steps=4, commit={"every": 1}).run()
    toys.run_stopped(lambda: trainer(labelled, tmp_path / "cut", steps=4, commit={"every": 1}), part=None)
    assert contents(tmp_path / "whole" / "out") == contents(tmp_path / "cut" / "out")


def test_any_correct_continuation_makes_a_label_of_one(labelled, tmp_path):
    soft = trainer(labelled, tmp_path / "soft")
    hard = trainer(labelled, tmp_path / "hard", step_labels={"separator": "-", "labels": "any"})
    prompt = [{"role": "user", "content": "say - 1"}]
    shares = [tokens_of(StepAnswer("u", prompt, ("a", "b", "c"), (0.125, 0.0, 1.0)), soft.tokenizer, None, None, "-")]
    assert soft._labels(shares).tolist() == [0.125, 0.0, 1.0] and hard._labels(shares).tolist() == [1.0, 0.0, 1.0]


def first(values):
    return next((place for place, value in enumerate(values) if value < 0.5), None)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=4)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_the_card_is_what_a_loop_over_the_answers_finds(answers):
    scored = [[(p / 20, label / 4) for p, label in steps] for _, steps in answers]
    p, labels = zip(*(step for steps in scored for step in steps), strict=True)
    card = step_card.measures(
        torch.tensor(p), torch.tensor(labels), [len(s) for s in scored], [name for name, _ in answers]
    )
    assert card["accuracy"] == pytest.approx(
        sum((a >= 0.5) == (b >= 0.5) for a, b in zip(p, labels, strict=True)) / len(p)
    )
    assert card["brier"] == pytest.approx(sum((a - b) ** 2 for a, b in zip(p, labels, strict=True)) / len(p), abs=1e-6)
    assert 0 <= card["ece"] <= 1
    pairs = [(first([b for _, b in steps]), first([a for a, _ in steps])) for steps in scored]
    with_error = [a == b for a, b in pairs if a is not None]
    without = [a == b for a, b in pairs if a is None]
    assert ("first_error_f1" in card) == bool(with_error and without)
    if with_error and without:
        hit, none = sum(with_error) / len(with_error), sum(without) / len(without)
        assert card["first_error_f1"] == pytest.approx(2 * hit * none / (hit + none) if hit + none else 0)
    groups = [[s for (name, _), s in zip(answers, scored, strict=True) if name == wanted] for wanted in "ab"]
    shares = []
    for group in (group for group in groups if len(group) > 1):
        lows = [min(torch.tensor([a for a, _ in steps]).double()) for steps in group]
        best = [steps[-1][1] >= 0.5 for steps, low in zip(group, lows, strict=True) if low == max(lows)]
        shares.append(sum(best) / len(best))
    assert card.get("best_of_n/min") == (pytest.approx(sum(shares) / len(shares)) if shares else None)


def test_a_gap_hides_the_first_error():
    p, labels = torch.tensor([0.9, 0.1, 0.9]), torch.tensor([1.0, 0.0, 1.0])
    assert step_card.measures(p, labels, [2, 1], ["a", "b"], [True, True])["first_error_f1"] == 1
    assert "first_error_f1" not in step_card.measures(p, labels, [2, 1], ["a", "b"], [False, True])


@pytest.mark.parametrize(("info", "words"), [
    ({"steps": ["a"]}, "holds no labelled steps"),
    ({"steps": ["a", " "], "step_labels": [1, 1]}, "holds no labelled steps"),
    ({"steps": ["a", "b"], "step_labels": [1]}, "holds no labelled steps"),
    ({"steps": ["a"], "step_labels": [2]}, r"info\.step_labels holds 2\. A label is from 0 to 1"),
])  # fmt: skip
def test_a_damaged_record_names_its_field(labelled, info, words):
    problem = dataset.read_split(labelled / "data", "train")[0]
    with pytest.raises(DataError, match=words):
        steps_of(replace(problem, info=info))


def test_pairs_are_no_steps_and_steps_no_pairs(labelled, begun, tmp_path):
    with pytest.raises(DataError, match="holds no pair"):
        reward_pairs.trainer(labelled, tmp_path / "a")
    with pytest.raises(DataError, match="holds no labelled steps"):
        trainer(begun, tmp_path / "b")


@pytest.mark.parametrize(("fields", "words"), [
    ({"loss": "step_bce"}, r"judge\.step_labels: step_bce learns from labelled steps"),
    ({"step_labels": {}}, r"judge\.loss: bradley_terry learns from pairs"),
    ({"step_labels": {}, "loss": "step_bce"}, r"judge\.data: pairs makes records of pairs .* learns from steps"),
    ({"step_labels": {}, "loss": "step_bce", "users": {}}, "which have neither `users` nor `critique`"),
    ({"step_labels": {"labels": "hard"}, "loss": "step_bce"}, "labels"),
])  # fmt: skip
def test_the_plan_refuses_what_does_not_fit(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(reward_pairs.recipe(tmp_path, **fields))
