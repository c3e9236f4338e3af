"""Published data sets, from a file in their columns to the first batch of the stage that reads them; docs/data.md says the same."""

from __future__ import annotations

import json
import re

import pytest
import toys
from published import ANSWERS, CHAT, PAIRS, PROMPTS, SAMPLES, THINGS

from pipelines import verifiers
from pipelines.contract.model_settings import Model
from pipelines.curate.answered import has_answers
from pipelines.curate.run import run as curate
from pipelines.data import dataset
from pipelines.data.records import Part
from pipelines.engine import models
from pipelines.preference.run import Trainer as Preferring
from pipelines.preference.settings import Preference
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.rlvr import gold_answers
from pipelines.sft.run import Trainer as Sft
from pipelines.stage.report import Report
from tasks.preflight import data as preflight_data
from tasks.preflight import functions as preflight_functions
from tasks.preflight import rewards as preflight_rewards

POSITIONS = 1200
FRESH = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "max_position_embeddings": POSITIONS, "tie_word_embeddings": True,
}  # fmt: skip


def recipe(folder, rows, settings, **changes):
    """A recipe whose one source is a file of the rows; the file has the same name everywhere."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "file", "path": str(folder / "rows.jsonl"), **settings}
    model = {
        "fresh": {"architecture": "llama", "config": FRESH},
        "tokenizer": {"kind": "char", "vocab_size": 300, "tools": True},
    }
    about = {"sources": [source], "splits": {"train": 1}, "near_duplicates": None, "decontaminate": None}
    return read_recipe(toys.recipe(folder, model=model, curate=about, **changes))


def curated(folder, name, **changes):
    """The recipe, the records and the data card of a sample."""
    sample = SAMPLES[name]
    read = recipe(folder, sample.rows(), sample.settings, **changes)
    (folder / "data").mkdir()
    curate(read.curate, read.model, out=folder / "data", report=Report(folder / "w"), seed=0)
    card = json.loads((folder / "data" / "report" / "card.json").read_text())
    assert card["rows"]["quarantined"] == 0 and card["splits"] == {"train": len(THINGS)}
    (kept_in_info,) = list(card["only_in_info"].values()) or [{}]
    assert set(kept_in_info) == set(sample.in_info)
    told = (folder / "data" / "report" / "card.md").read_text()
    logged = " ".join(line["text"] for line in toys.spool(folder / "w") if line["kind"] == "event")
    assert all(f"{column} (" in told and f"{column} (" in logged for column in sample.in_info)
    problems = dataset.read_split(folder / "data", "train")
    assert all(column in problem.info for problem in problems[1:2] for column in sample.in_info)
    return read, problems


def trainer(folder, kind, settings, read, **more):
    work = folder / "work"
    (work / "out").mkdir(parents=True)
    report = Report(work, committed=True)
    return kind(
        settings,
        more.pop("model", read.model),
        data=folder / "data",
        out=work / "out",
        work=work,
        report=report,
        seed=0,
        **more,
    )


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_reaches_the_first_batch_of_sft(name, tmp_path):
    sft = {
        "steps": 1, "heldout": None, "max_length": POSITIONS, "tokens_per_step": 6 * POSITIONS,
        "micro_batch_tokens": 6 * POSITIONS,
    }  # fmt: skip
    read, problems = curated(tmp_path, name, sft=sft)
    made = trainer(tmp_path, Sft, read.sft, read)
    assert len(made.documents) == len(THINGS)
    for document, problem in zip(made.documents, problems, strict=True):
        text = made.tokenizer.decode(document.tokens)
        trained = made.tokenizer.decode([t for t, on in zip(document.tokens, document.mask(), strict=True) if on])
        (thing,) = (thing for thing in THINGS if thing in trained)
        last = re.sub(r"\s+", "", problem.info["solution"])
        assert thing in last and last in re.sub(r"\s+", "", trained).replace("​", "")
        assert "gets3more" in re.sub(r"\s+", "", text) and "gets 3 more" not in trained
    assert made.make_step(0)["loss/train"] > 0


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_the_verifier_pays(name, tmp_path):
    read, problems = curated(tmp_path, name)
    gold_answers.require(problems, read.rlvr.reward, "train")
    numbers = {"math": str, "choice": lambda _: "B", "tool_calls": None}
    for problem in problems:
        (number,) = (n for n, thing in enumerate(THINGS) if thing in problem.prompt[-1]["content"])
        say = numbers[problem.verifier]
        wanted = say(number + 5) if say else problem.info["solution"]
        assert say is None or problem.answer == wanted
        assert verifiers.verify(problem.verifier, wanted, problem.answer, problem.info).correct
        assert not verifiers.verify(problem.verifier, "I do not know.", problem.answer, problem.info).correct


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_reaches_the_first_batch_of_a_preference_stage(name, tmp_path):
    read, _ = curated(tmp_path, name)
    tokenizer = models.load_tokenizer(tmp_path / "data" / "tokenizer", read.model)
    start = tmp_path / "model"
    models.save_model(models.fresh_model(read.model, tokenizer, 0), tokenizer, start, {"stage": "sft"})
    settings = Preference.model_validate(
        {
            "steps": 1,
            "pairs_per_step": len(THINGS),
            "max_length": POSITIONS,
            "micro_batch_tokens": 6 * POSITIONS,
            "heldout": None,
        }
    )
    made = trainer(tmp_path, Preferring, settings, read, model=Model(path=str(start)), start=str(start))
    texts = [tokenizer.decode(tokens) for tokens in made.examples.tokens]
    assert (
        len(made.examples)
        == len(THINGS)
        == sum("No idea." in text for text in texts)
        == sum("in the end." in t for t in texts)
    )
    assert sum("gets 3 more" in text for text in texts) == 2 * len(THINGS)
    made.begin()
    assert made.make_step(0)["loss/train"] > 0


FUNCTIONS = """
def brevity(prompts, completions, **columns):
    assert "gets 3 more" in prompts[0][-1]["content"]
    return [-float(len(completion[-1]["content"])) for completion in completions]


def asks_for_its_columns(completions, COLUMNS):
    return [0.0] * len(completions)


def fails_in_a_library(completions, **columns):
    import json
    return [json.loads(completion[-1]["content"]) for completion in completions]
"""


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_alone_are_planned_with_a_reward_function(name, tmp_path, monkeypatch):
    sample = SAMPLES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"prompts_of_{list(PROMPTS).index(name)}"
    (tmp_path / f"{module}.py").write_text(FUNCTIONS.replace("COLUMNS", ", ".join(sample.in_info or ("info",))))
    reward = {"kind": "function", "path": f"{module}:brevity"}
    read, problems = curated(
        tmp_path, name, rlvr={"reward": reward, "reward_functions": [f"{module}:asks_for_its_columns"]}
    )
    gold_answers.require(problems, read.rlvr.reward, "train")
    assert not any(problem.answer or problem.parts for problem in problems)
    node = read.node("rlvr")
    asked = [question for _, _, question in preflight_rewards.questions(node, node.settings)]
    assert len(asked) == 2 and [preflight_functions.answer(each) for each in asked] == [{}, {}]
    (said,) = [preflight_functions.answer(each | {"name": f"{module}:fails_in_a_library"}) for each in asked[:1]]
    line = (
        FUNCTIONS.splitlines().index('    return [json.loads(completion[-1]["content"]) for completion in completions]')
        + 1
    )
    assert f"{tmp_path}/{module}.py:{line}" in said["problem"] and "JSONDecodeError" in said["problem"]


def told(read):
    """What `plan` says of the data, by field."""
    source = read.curate.sources[0]
    known = {"curate.sources.0": preflight_data.answer(preflight_data.question(source))}
    nodes = [node for node in read.nodes() if node.name in ("sft", "rlvr")]
    return known["curate.sources.0"], [str(problem) for problem in preflight_data.problems(nodes, known)]


@pytest.mark.parametrize("name", SAMPLES)
def test_plan_knows_what_a_data_set_is_good_for(name, tmp_path):
    sample = SAMPLES[name]
    answer, problems = told(recipe(tmp_path, sample.rows(), sample.settings, sft={"heldout": None}))
    parts = set(answer["parts"])
    assert {"chat": Part.TARGET, "answers": Part.GOLD, "pairs": Part.PAIR, "prompts": None}[sample.use] in {
        None,
        *parts,
    }
    assert (Part.GOLD not in parts) == any("has no gold answer, and rlvr" in problem for problem in problems)
    assert (Part.TARGET not in parts) == any("has no answer to be learned, and sft" in problem for problem in problems)
    assert all(f"Its columns: {', '.join(sorted(sample.columns))}." in problem for problem in problems)


def test_one_answer_among_the_rows_makes_the_others_incomplete(tmp_path):
    rows = [{"prompt": f"question {n}"} for n in range(30)]
    read = recipe(tmp_path, rows, {})
    assert not has_answers(read.curate.sources[0])
    for complete in (
        {"answer": "4"},
        {"completion": "Four."},
        {"chosen": "Four.", "rejected": "Five."},
        {"answer": ["4", "5"]},
    ):
        assert has_answers(recipe(tmp_path, [*rows, {"prompt": "2 + 2?"} | complete], {}).curate.sources[0])
    for settings in ({"verifier": "math"}, {"columns": {"answer": "prompt"}}):
        assert has_answers(recipe(tmp_path, rows, settings).curate.sources[0])
    assert has_answers(Source(kind="reasoning_gym", task="palindrome_generation", size=2))
    read = recipe(tmp_path, [*rows, {"prompt": "2 + 2?", "answer": "4"}], {})
    (tmp_path / "data").mkdir()
    curate(read.curate, read.model, out=tmp_path / "data", report=Report(tmp_path / "w"), seed=0)
    lines = [json.loads(line) for line in (tmp_path / "data/report/quarantine.jsonl").read_text().splitlines()]
    assert [(line["line"], line["field"], line["reason"]) for line in lines] == [
        (n, "answer", "the row has no answer") for n in range(1, 31)
    ]
    assert "name its column, `columns: {answer: COLUMN}`; it has prompt" in lines[0]["detail"]


def documented():
    """Data set → (columns, the source's setting, stage) of the table in docs/data.md."""
    text = (toys.ROOT / "docs" / "data.md").read_text()
    table = text.partition("## What is recognised")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    return {name: cells for name, *cells in rows[1:]}


def test_the_documented_table_is_what_these_tests_try():
    stages = {"chat": "`sft`", "answers": "`rlvr`", "pairs": "`preference`", "prompts": "`rlvr`, function"}
    as_written = {
        name: [
            ", ".join(f"`{column}`" for column in sample.columns),
            ", ".join(
                f"`columns: {{{field}: {column}}}`" for field, column in sample.settings.get("columns", {}).items()
            ),
            ", ".join(f"`{column}`" for column in sample.in_info),
            stages[sample.use],
        ]
        for name, sample in SAMPLES.items()
    }
    assert documented() == as_written
