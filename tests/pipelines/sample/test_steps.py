"""Labels of steps: which prefixes are continued, what their verdicts become, restarts, what is refused."""

from __future__ import annotations

import json
import re

import pytest
import toys
import yaml
from ranks import run_stages

from pipelines.base.errors import ModelError, RecipeError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.data import samples
from pipelines.engine import models
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.sample import steps
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

SETTINGS = {"k": 4, "rows_per_shard": 10_000, "sampling": {"max_tokens": 6}, "step_labels": {"separator": "l"}}
TEXTS = [["eel", "nolpal"], ["nolpil", "nolpil"], ["elaliae", ""], ["aa", "nn"]]
PATTERN = "[ae]"


@pytest.fixture(scope="module")
def stored(start, tmp_path_factory):
    """Two completions of each of four problems, correct where they have an a or an e after the prompt."""
    folder = tmp_path_factory.mktemp("stored")
    tokenizer = models.load_tokenizer(start / "sft/out/model")
    rows = []
    for number, texts in enumerate(TEXTS):
        prompt = [{"role": "user", "content": f"palindrome {'abcd'[number]}"}]
        for place, text in enumerate(texts):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            failed = not text
            rows.append({
                "uid": f"{number:032x}", "prompt": json.dumps(prompt), "answer": PATTERN, "verifier": "regex", "source": "s",
                "licence": "l",
                "info": json.dumps({"mode": "search", "example": "a"}), "text": text, "sample": place, "components": "{}",
                "prompt_ids": tokenizer(f"palindrome {'abcd'[number]}", add_special_tokens=False)["input_ids"],
                "completion_ids": ids if failed else [*ids, tokenizer.eos_token_id], "logp": [-1.0] * len(ids), "entropy": None,
                "stop": "error" if failed else "end", "status": "unscored" if failed else "correct",
                "score": None if failed else 1.0, "correct": None if failed else bool(re.search(PATTERN, text)),
            })  # fmt: skip
    rows[-1] |= {"status": "verifier_failed", "score": None, "correct": None}
    (folder / samples.FOLDER).mkdir()
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(0), rows[:6])
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(1), rows[6:])
    about = {"k": 2, "problems": 4, "rows": 8, "split": "train", "template": models.template_identity(tokenizer)}
    (folder / samples.ABOUT).write_text(json.dumps(about))
    return folder


def labelled(start, stored, folder, **changes):
    model = str(start / "sft/out/model")
    metrics = steps.label_steps(
        Sample.model_validate(SETTINGS | changes), Model(path=model), start=model, data=stored, out=folder / "out",
        report=Report(folder), seed=5,
    )  # fmt: skip
    return metrics, [(row, json.loads(row["steps"] or "null")) for row in samples.read(folder / "out")]


def test_labels_are_shares_of_verified_continuations(start, stored, tmp_path):
    metrics, rows = labelled(start, stored, tmp_path)
    assert [row["text"] for row, _ in rows] == [text for texts in TEXTS for text in texts]
    for row, told in rows:
        if row["stop"] == "error":
            assert told is None
            continue
        assert "".join(step["text"] for step in told) == row["text"]
        assert [step["drawn"] for step in told] == [4] * (len(told) - 1) + [int(row["correct"] is not None)]
        assert told[-1]["correct"] == int(row["correct"] or 0)
        prefix = ""
        for step in told[:-1]:
            prefix += step["text"]
            assert step["text"].endswith("l")
            if re.search(PATTERN, prefix):  # what is there already stays there
                assert step["correct"] == 4
    assert [len(told) for _, told in rows if told] == [1, 2, 2, 2, 3, 1, 1]
    shares = [s["correct"] / s["drawn"] for _, told in rows if told for s in told if s["drawn"]]
    assert metrics["steps/label"] == pytest.approx(sum(shares) / len(shares))
    assert metrics["steps/per_answer"] == pytest.approx(12 / 7) and metrics["rows"] == 8
    about = samples.about(tmp_path / "out")
    assert about["k"] == 2 and about["continuations"] == 4 and about["problems"] == 4


def test_equal_prefixes_are_continued_once(start, stored, tmp_path, monkeypatch):
    """And what is drawn goes on from the stored tokens."""
    asked = []
    real = steps.Drawer.__init__

    def watched(self, *args):
        real(self, *args)
        extend = self.sampler.extend
        self.sampler.extend = lambda prefixes, *rest, **more: asked.append(prefixes) or extend(prefixes, *rest, **more)

    monkeypatch.setattr(steps.Drawer, "__init__", watched)
    _, rows = labelled(start, stored, tmp_path)
    tokenizer = models.load_tokenizer(start / "sft/out/model")
    texts = [tokenizer.decode(ids).replace(" ", "") for prefixes in asked for ids in prefixes]
    assert len(texts) == 4 * len(set(texts)), "each prefix four times"
    assert {text.rpartition("palindrome")[2] for text in texts} == {"anol", "bnol", "cel", "celal"}
    assert rows[2][1][0] == rows[3][1][0]


def test_labels_depend_on_the_prefix_alone(start, stored, tmp_path):
    _, together = labelled(start, stored, tmp_path / "a")
    _, alone = labelled(start, stored, tmp_path / "b", rows_per_shard=1, problems=3)
    assert len(list((tmp_path / "b/out/samples").iterdir())) == 3
    assert [told for _, told in alone] == [told for _, told in together[:6]]
    _, other = labelled(start, stored, tmp_path / "c", sampling={"max_tokens": 6, "temperature": 0})
    assert all(s["correct"] in (0, 4) for _, told in other if told for s in told[:-1])


def test_finished_shards_stay_over_a_restart(start, stored, tmp_path):
    labelled(start, stored, tmp_path, rows_per_shard=1)
    whole = contents(tmp_path / "out")
    folder = tmp_path / "out" / "samples"
    (folder / samples.shard_name(1)).unlink()
    (folder / "half").write_text("x")
    labelled(start, stored, tmp_path, rows_per_shard=1)
    assert contents(tmp_path / "out") == whole


@pytest.mark.slow
def test_two_processes_label_as_one(start, stored, tmp_path):
    metrics, _ = labelled(start, stored, tmp_path / "one", rows_per_shard=16)
    work = tmp_path / "two"
    (work / "out").mkdir(parents=True)
    settings = {"sample": SETTINGS | {"rows_per_shard": 16}, "model": {"path": str(start / "sft/out/model")}}
    job = {"seed": 5, "settings": settings, "inputs": {"data": str(stored)}, "stage": "sample"}
    (work / "job.json").write_text(json.dumps(job))
    run_stages("pipelines.sample", [work], 2)
    assert contents(work / "out") == contents(tmp_path / "one" / "out")
    lines = [line for line in toys.spool(work) if line["kind"] == "metrics"]
    assert [line["step"] for line in lines] == [0, 1, 2] and lines[-1]["values"] == pytest.approx(metrics)
    assert len(toys.spool(work / "rank1")) == 1, "a shard of each"


def test_completions_of_another_tokenizer_are_refused(start, stored, tmp_path):
    (tmp_path / "stored" / samples.FOLDER).mkdir(parents=True)
    about = json.loads((stored / samples.ABOUT).read_text()) | {"template": "other"}
    (tmp_path / "stored" / samples.ABOUT).write_text(json.dumps(about))
    with pytest.raises(ModelError, match="sample: the chat template or vocabulary differs"):
        labelled(start, tmp_path / "stored", tmp_path)


def graph(folder, *, drafts=None, records=None, **labels):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    read = {"kind": "stage", "path": "labels", "select": "steps"} | (records or {})
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4, **(drafts or {})},
        "labels": {"kind": "sample", "data": "drafts", "model": "cold", "step_labels": {}, **labels},
        "steps": {"kind": "curate", "sources": [read]},
    }  # fmt: skip
    path = folder / "labels.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_the_plan_knows_what_is_labelled(tmp_path):
    check(graph(tmp_path))


def test_turns_need_no_continuations(tmp_path):
    node = graph(tmp_path, drafts={"episodes": {}}).node("labels")
    with pytest.raises(RecipeError, match="drafts plays episodes, whose turns get their labels without more sampling"):
        node.kind.check(node)


def test_a_preference_stage_refuses_labelled_steps(tmp_path):
    path = tmp_path / "labels.yaml"
    graph(tmp_path)
    body = yaml.safe_load(path.read_text())
    body["stages"]["liked"] = {"kind": "preference", "data": "steps", "model": "cold", "loss": "dpo", "steps": 1}
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    with pytest.raises(RecipeError, match=r"liked\.data: steps\.sources\.0 .* makes no pairs of answers"):
        check(read_recipe(path))


@pytest.mark.parametrize(("fields", "words"), [
    ({"step_labels": None}, r"labels\.data: drafts makes completions, which only `step_labels` and `comparisons` read"),
    ({"data": "data"}, r"labels\.data: step_labels reads completions"),
    ({"split": "heldout"}, "the stage that drew the completions chose the split"),
    ({"self_judge": {}}, "`self_judge` is about new ones"),
    ({"records": {"path": "drafts"}}, r"steps\.sources\.0\.select: drafts labels no steps"),
    ({"records": {"select": {"kind": "steps", "discount": 0.9}}}, r"select\.discount: it is of the turns of episodes"),
])  # fmt: skip
def test_what_cannot_be_labelled_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(graph(tmp_path, **fields))
