"""RL-VLM-F on pictures: a judge behind a server is sent two of them, its verdicts become pairs of states, a reward model of
single pictures learns these, and turns are paid by it."""

from __future__ import annotations

import base64
import io
import json

import judge_server
import pytest
import reward_pairs
import toys
import vision_models
from PIL import Image

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.curate.run import run as curate
from pipelines.data import dataset, marks, samples
from pipelines.data.chat import render_answer
from pipelines.data.pair_records import read_pairs
from pipelines.data.pairs import of_state
from pipelines.engine import models
from pipelines.engine.reward_model import RewardScorer
from pipelines.environments import frozen_lake
from pipelines.papers.rl_vlm_f import closer_states
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Curate
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.sample import run as sample
from pipelines.sample.comparisons import compare
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

AGENT, GOAL = (frozen_lake.TILES[letter].colour for letter in "AG")


def distance(image):
    """Rows and columns from the agent to the goal, seen in the pixels; 0 where no goal is seen, and far in a hole."""
    places = {
        image.getpixel((8 * c + 4, 8 * r + 4)): (r, c)
        for r in range(image.height // 8)
        for c in range(image.width // 8)
    }
    corner = {image.getpixel((8 * c + 1, 8 * r + 1)) for r in range(image.height // 8) for c in range(image.width // 8)}
    if AGENT in corner:  # a cross
        return 99
    agent, goal = places[AGENT], places.get(GOAL)
    return 0 if goal is None else abs(agent[0] - goal[0]) + abs(agent[1] - goal[1])


def closer(body):
    """A judge that looks at the pictures, which are sent as PNG files."""
    first, second = (
        distance(Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2]))))
        for part in body["messages"][-1]["content"]
        if part["type"] == "image_url"
    )
    return f"Better: {'unsure' if first == second else 'first' if first < second else 'second'}"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Episodes of a random model that sees, with verdicts in `compared`, pairs of states in `data`, the model in `model`."""
    folder = tmp_path_factory.mktemp("states")
    read = read_recipe(vision_models.lake(folder))
    (folder / "problems").mkdir()
    curate(read.curate, read.model, out=folder / "problems", report=Report(folder / "w"), seed=0)
    tokenizer = models.load_tokenizer(folder / "problems" / "tokenizer", read.model)
    model = models.fresh_model(read.model, tokenizer, 0)
    models.save_model(model, tokenizer, folder / "model", {"stage": "sft"})
    path = str(folder / "model")
    played = {"k": 4, "problems": 30, "split": "train", "episodes": {"max_turns": 2}, "sampling": {"max_tokens": 6}}
    sample.run(
        Sample.model_validate(played), Model(path=path), start=path, data=folder / "problems", out=folder / "drafts",
        report=Report(folder / "w"), seed=5,
    )  # fmt: skip
    _walk(folder / "drafts")
    with judge_server.running(closer) as server:
        asked = {
            "by": "endpoint", "model": "m", "url": server.url, "cache": False, "states": True, "analyse": False,
            "template": "{first}{second}Which is closer?", "per_problem": 8,
        }  # fmt: skip
        metrics = compare(
            Sample.model_validate({"comparisons": asked}), Model(path=path), start=path, data=folder / "drafts",
            out=folder / "compared", report=Report(folder / "w"), seed=3,
        )  # fmt: skip
    section = Curate.model_validate({
        "sources": [{"kind": "stage", "path": "x", "select": {"kind": "preferred", "per_problem": 8}}],
        "splits": {"train": 0.8, "heldout": 0.2}, "near_duplicates": None, "decontaminate": None,
    })  # fmt: skip
    (folder / "data").mkdir()
    curate(
        section, read.model, out=folder / "data", report=Report(folder / "w"), seed=0, samples={0: folder / "compared"}
    )
    return folder, metrics


def _walk(drafts):
    """Write walks of four directions over the episodes: a random model writes no moves."""
    for path in sorted((drafts / samples.FOLDER).glob("*.parquet")):
        rows = list(samples.read(drafts))
        for row in rows:
            world, way = frozen_lake.World(), frozen_lake.ACTIONS[row["sample"] % 4]
            world.reset(dataset.from_row(row))
            steps = [world.step(way), world.step(way)]
            told = json.loads(row[samples.EPISODE])
            turn = told["turns"][0]
            told["turns"] = [turn | {"message": way, "reply": step.observation} for step in steps]
            told["last"] = steps[-1].observation
            row[samples.EPISODE] = json.dumps(told)
        toys.write_samples(path, rows)


@pytest.mark.slow
def test_verdicts_about_pictures_become_pairs_of_states(begun):
    folder, metrics = begun
    pairs = read_pairs(folder / "data", "train")
    assert metrics["comparisons/per_problem"] > 2 and "comparisons/agreement" not in metrics
    assert len(pairs) > 40 and len({json.dumps([p.prompt, p.rejected_prompt]) for p in pairs}) == len(pairs)
    from pipelines.data.images import IMAGES

    for pair in pairs:
        better, worse = (marks.marked(side.prompt[-1]["content"]) for side in pair.sides)
        assert pair.chosen == pair.rejected == "" and len(better) == len(worse) == 1
        assert distance(IMAGES.image(better[0])) < distance(IMAGES.image(worse[0]))


@pytest.fixture(scope="module")
def scorer(begun, tmp_path_factory):
    """A reward model of pictures, trained on the pairs."""
    folder, _ = begun
    work = tmp_path_factory.mktemp("reward")
    (work / "out").mkdir()
    settings = reward_pairs.SETTINGS | {"max_length": 64, "steps": 80, "micro_batch_tokens": 2048}
    trainer = Trainer(
        RewardModel.model_validate(settings), Model(path=str(folder / "model")), data=folder / "data", out=work / "out",
        work=work, report=Report(work, committed=True), seed=3, start=str(folder / "model"),
    )  # fmt: skip
    trainer.run()
    return RewardScorer(work / "out" / "model", Model(path="x"), budget=512, field="f"), trainer


@pytest.mark.slow
@pytest.mark.long
def test_a_reward_model_of_pictures_learns_them_and_reads_the_same_from_its_folder(begun, scorer):
    member, trainer = scorer
    columns = trainer._all_columns(trainer.pairs, range(len(trainer.pairs)))[0]
    assert float((columns["chosen_reward"] > columns["rejected_reward"]).float().mean()) > 0.6
    shown = [pair.pair.prompt for pair in trainer.pairs[:20]]
    rendered = [render_answer(member.tokenizer, prompt, "", "x") for prompt in shown]
    scores = member.score([ids for ids, _ in rendered], [start for _, start in rendered])
    assert scores[:, 0].tolist() == pytest.approx(columns["chosen_reward"][:20].tolist(), abs=1e-5)
    assert scores.std() > 1e-4, "pictures are told apart"
    with pytest.raises(Exception, match="is a reward model"):
        models.load_model(member.path, Model(path=member.path))


class Connected:
    """A scorer that has one reward model."""

    def __init__(self, member):
        self.member = member

    def reward_model(self, path, field):
        return self.member


@pytest.mark.slow
def test_turns_are_paid_what_the_picture_after_them_is_worth(begun, scorer):
    from scripted import conversation

    folder, _ = begun
    problem = dataset.read_split(folder / "problems", "train")[0]
    world = frozen_lake.World()
    start = world.reset(problem)[-1]["content"]
    states = [world.step("right").observation, world.step("down").observation]
    member, _ = scorer
    rendered = [render_answer(member.tokenizer, of_state(text), "", "x") for text in [start, *states]]
    r = member.score([ids for ids, _ in rendered], [at for _, at in rendered])[:, 0].tanh().tolist()
    for gain, expected in ((False, r[1:]), (True, [r[1] - r[0], r[2] - r[1]])):
        part = bind("rlvr.reward", {"kind": "states", "model": "scorer", "gain": gain}).fn
        part.connect(Connected(member))
        row = conversation(problem.uid, "go", "x", "go", turn_observation=states, outcome=1.0)
        part.score([row], {problem.uid: problem})
        assert row.turn_reward == pytest.approx(expected, abs=1e-5) and row.components["outcome"] == 1.0
        assert row.score == pytest.approx(sum(expected), abs=1e-5)


def test_states_need_a_judge():
    with pytest.raises(ValueError, match="states have no score"):
        Sample.model_validate({"comparisons": {"by": "score", "states": True}})


def test_questions_for_a_judge_have_exact_answers():
    from pipelines.data.images import IMAGES

    rows = list(closer_states.problems(60, 4, ice=0.9, demonstrations=True))
    answers = [row["answer"] for row in rows]
    assert {answers.count(each) > 10 for each in ("Better: first", "Better: second")} == {True}
    for row in rows:
        first, second = (distance(IMAGES.image(d)) for d in marks.marked(row["prompt"][0]["content"]))
        if 99 in (first, second) and first != second:
            assert row["answer"] == f"Better: {'second' if first == 99 else 'first'}"
        if 0 in (first, second) and first != second:
            assert row["answer"] == f"Better: {'first' if first == 0 else 'second'}"
    test = {row["prompt"][0]["content"] for row in closer_states.problems(60, 4, ice=0.9, part="test")}
    assert not test & {row["prompt"][0]["content"] for row in rows}


def test_the_reward_names_a_reward_model():
    with pytest.raises(RecipeError, match="model"):
        bind("rlvr.reward", {"kind": "states"})


@pytest.mark.slow
def test_a_policy_that_sees_is_trained_by_it(begun, scorer, tmp_path):
    (folder, _), (member, _) = begun, scorer
    (tmp_path / "start/sft/out").mkdir(parents=True)
    (tmp_path / "start/sft/out/model").symlink_to(folder / "model")
    (tmp_path / "start/data").symlink_to(folder / "problems")
    made = toys.trainer(
        tmp_path, tmp_path / "start", vision_models.lake(tmp_path), "rlvr.rollout={kind: multi_turn, max_turns: 2}",
        "rlvr.steps=1", f'rlvr.reward={{kind: states, model: "{member.path}"}}',
    )  # fmt: skip
    made.run()
    (values,) = [history for _, history in toys.history(tmp_path / "work")]
    paid = values["reward_component/turn.states"]
    assert 0 < abs(paid) < 2 and values["reward/mean"] == pytest.approx(paid)
