"""Tasks of lm-eval's with images: the model is shown them where the question says, as lm-eval's own class for such models is."""

from __future__ import annotations

import base64
import io
import json

import pytest
import vision_models
from PIL import Image

from evaluation import harness, model, run
from evaluation.documents import questions
from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.data import marks, thumbnails
from pipelines.data.images import IMAGES, digest_of
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report
from tasks.preflight import probe

TASK = """
task: {name}
custom_dataset: !function utils.dataset
output_type: {output}
test_split: test
fewshot_split: test
doc_to_image: [picture]
doc_to_text: "{text}"
doc_to_target: "{{{{answer}}}}"
{rest}
metric_list:
  - {{metric: {metric}, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1}}
"""
ANSWERED = "generation_kwargs: {do_sample: false, max_gen_toks: 6, until: ['?']}"
CHOSEN = 'doc_to_choice: ["red", "lime", "blue", "black"]'
UTILS = """
import sys
sys.path.insert(0, {tests!r})
from datasets import Dataset, Features, Image, Value
import vision_models


def dataset(**_):
    colours = vision_models.COLOURS
    rows = [{{"picture": vision_models.picture(24, 20, n), "answer": colours[n % 4], "extra": "a"}} for n in range(6)]
    features = Features({{"picture": Image(), "answer": Value("string"), "extra": Value("string")}})
    return {{"test": Dataset.from_list(rows, features=features)}}
"""


def write(
    folder, name="shown", output="generate_until", text="Look <image> what?", rest=ANSWERED, metric="exact_match"
):
    (folder / "utils.py").write_text(UTILS.format(tests=str(harness.BENCHMARKS.parents[1] / "tests")))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, output=output, text=text, rest=rest, metric=metric))
    return Evaluate(tasks=[name], include=str(folder), bootstrap=100)


def ask(lm, settings, **task):
    (only,) = [each.model_copy(update=task) for each in settings.tasks]
    return harness.evaluate(lm, harness.manager(settings), only, settings)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return vision_models.make("llava", tmp_path_factory.mktemp("llava"))


def loaded(path):
    return model.load(str(path), Model(path=str(path)), batch_size=4)


@pytest.mark.slow
def test_greedy_answers_are_those_of_lm_eval_s_class_for_models_that_see(tmp_path, llava):
    from lm_eval.evaluator import evaluate
    from lm_eval.models.hf_vlms import HFMultimodalLM
    from lm_eval.tasks import TaskManager, get_task_dict

    settings = write(tmp_path)
    ours = ask(loaded(llava), settings, chat=False)[1]["shown"]
    theirs = evaluate(
        HFMultimodalLM(pretrained=str(llava), batch_size=1, device="cpu", dtype="float32", max_length=256),
        get_task_dict(["shown"], TaskManager(include_path=str(tmp_path), include_defaults=False)),
        log_samples=True,
        bootstrap_iters=0,
    )["samples"]["shown"]
    answers = [row["resps"][0][0] for row in ours]
    assert answers == [row["resps"][0][0] for row in theirs]
    assert len(set(answers)) > 1


def test_choices_are_scored_by_what_the_model_gives_them_after_the_picture(tmp_path, llava):
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    settings = write(tmp_path, "chosen", "multiple_choice", rest=CHOSEN, metric="acc")
    rows = ask(loaded(llava), settings, chat=False)[1]["chosen"]
    network, processor = AutoModelForImageTextToText.from_pretrained(llava), AutoProcessor.from_pretrained(llava)
    for number, row in enumerate(rows):
        image = vision_models.picture(24, 20, number)
        for choice, ((value, _),) in zip(vision_models.COLOURS, row["resps"], strict=True):
            before = processor(text="Look <image> what?", images=image, return_tensors="pt")["input_ids"].shape[1]
            inputs = processor(text=f"Look <image> what? {choice}", images=image, return_tensors="pt")
            with torch.no_grad():
                logps = network(**inputs).logits[0, :-1].log_softmax(-1)
            chosen = logps.gather(1, inputs["input_ids"][0, 1:, None])[before - 1 :]
            assert float(value) == pytest.approx(float(chosen.sum()), abs=1e-3)


def test_images_stand_where_the_text_says_and_before_it_where_it_does_not(tmp_path):
    pictures = [digest_of(vision_models.picture(24, 20, number)) for number in range(6)]
    write(tmp_path)
    texts = [text for _, text in questions({"tasks": ["shown"], "include": str(tmp_path)})]
    assert texts == [f"Look {marks.mark(digest)} what?" for digest in pictures]
    write(tmp_path, text="what?")
    texts = [text for _, text in questions({"tasks": ["shown"], "include": str(tmp_path)})]
    assert texts == [f"{marks.mark(digest)}what?" for digest in pictures]


def test_examples_have_their_images_too(tmp_path, llava):
    lm = loaded(llava)
    settings, asked = write(tmp_path), []
    by_lm, lm.decoder = lm.decoder, Decoder(asked)
    lm.decoder.sampler = by_lm
    ask(lm, settings, few_shot=2, chat=True)
    assert [sum(token >= marks.FIRST_ID for token in row) for row in asked] == [3 * 16] * 6


class Decoder:
    """A sampler that notes what it is asked."""

    def __init__(self, asked):
        self.asked = asked

    def extend(self, contexts, *arguments):
        self.asked += contexts
        return self.sampler.extend(contexts, *arguments)


def test_logs_name_images_and_pages_have_them_small(tmp_path, llava):
    (tmp_path / "task").mkdir()
    settings = write(tmp_path / "task")
    out = tmp_path / "out"
    (out / "report").mkdir(parents=True)
    run.run(
        settings,
        Model(path=str(llava)),
        checkpoints={"base": str(llava)},
        out=out,
        report=Report(tmp_path / "w"),
        seed=0,
    )
    (path,) = (out / "samples").rglob("shown.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    digests = [digest_of(vision_models.picture(24, 20, number)) for number in range(6)]
    assert [row["doc"]["picture"] for row in rows] == [marks.mark(digest) for digest in digests]
    assert set(thumbnails.read([out])) == set(digests)


def test_a_model_that_reads_text_alone_is_told_so(tmp_path):
    import toys

    from pipelines.engine.models import save_model, train_tokenizer

    tokenizer = train_tokenizer("char", 128, ["Look what? redlimbuack"])
    save_model(toys.model("llama", len(tokenizer)), tokenizer, tmp_path / "text", {"stage": "base"})
    with pytest.raises(ModelError, match="it reads text alone"):
        ask(loaded(tmp_path / "text"), write(tmp_path))


@pytest.mark.parametrize("text_only", [True, False])
def test_plan_refuses_them_for_a_model_that_reads_text_alone(tmp_path, text_only):
    write(tmp_path)
    question = {"ask": "benchmark", "name": "shown", "include": str(tmp_path), "own": True, "text_only": text_only}
    problem = probe.answer(question).get("problem", "")
    assert ("shown asks about images, and the recipe's model reads text alone" in problem) is text_only


@pytest.mark.parametrize(
    ("text", "extra", "problem"),
    [
        ("<image> and <image>?", "", "has 1 images and 2 places for them"),
        ("what?", "doc_to_audio: [extra]", "asks with sounds"),
    ],
)
def test_what_cannot_be_shown_is_refused(tmp_path, text, extra, problem):
    write(tmp_path, text=text, rest=f"{ANSWERED}\n{extra}")
    with pytest.raises(RecipeError, match=problem):
        list(questions({"tasks": ["shown"], "include": str(tmp_path)}))


def test_pictures_that_are_none_are_refused(tmp_path):
    settings = write(tmp_path)
    yaml = tmp_path / "shown.yaml"
    yaml.write_text(yaml.read_text().replace("[picture]", "[extra]"))
    with pytest.raises(RecipeError, match="a question of shown has an image that cannot be read"):
        list(questions(settings.model_dump()))


def test_settings_that_the_sampler_does_not_know_and_questions_that_do_not_fit_are_refused(tmp_path, llava):
    lm = loaded(llava)
    settings = write(tmp_path, rest="generation_kwargs: {repetition_penalty: 1.5, max_gen_toks: 6, until: []}")
    with pytest.raises(RecipeError, match="shown has images and sets repetition_penalty"):
        ask(lm, settings)
    settings = write(tmp_path, rest=f"generation_kwargs: {{max_gen_toks: {lm.max_length - 8}, until: []}}")
    with pytest.raises(ModelError, match="with its images, and there is room for 8 before the answer"):
        ask(lm, settings)


def test_an_endpoint_is_sent_the_pixels():
    from pipelines.judges.model_endpoint import spoken

    image = vision_models.picture(24, 20, 77)
    (message,) = spoken([{"role": "user", "content": f"Look {IMAGES.add(image)} what?"}])
    first, shown, last = message["content"]
    assert (first["text"], last["text"]) == ("Look ", " what?")
    sent = Image.open(io.BytesIO(base64.b64decode(shown["image_url"]["url"].partition(",")[2])))
    assert digest_of(sent) == digest_of(image)
    assert spoken([{"role": "user", "content": "no image"}]) == [{"role": "user", "content": "no image"}]
