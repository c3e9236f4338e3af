"""The band of pass rates: whose they are, what the model is asked with, and where it may come from."""

from __future__ import annotations

import json
import re

import pytest
import toys
import yaml
from rank_threads import in_ranks
from stand_in import StandIn

from pipelines.base.errors import RecipeError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.curate import difficulty
from pipelines.curate.card import Counts
from pipelines.data.dataset import Writer
from pipelines.data.records import Problem
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Difficulty
from pipelines.stage.report import Report
from tasks import keys

BAND = {"samples": 2, "max_tokens": 4}


def graph(tmp_path, **band):
    """Easy data, a cold start on them, and data that the cold start solves sometimes, for RLVR."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rlvr, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    body["stages"] = {
        "easy": {"kind": "curate", **data},
        "cold": {"kind": "sft", "data": "easy", **sft},
        "band": {"kind": "curate", **data, "difficulty": {"model": "cold", **BAND, **band}},
        "rl": {"kind": "rlvr", "data": "band", "model": "cold", **rlvr, "steps": 1},
    }
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path


def test_a_stage_is_an_input_whose_name_is_not_in_the_key(tmp_path):
    path = graph(tmp_path)
    node = read_recipe(path).node("band")
    assert node.labels == {"difficulty.model": "cold"} and node.kind.job(node)["solver"] == "difficulty.model"
    assert read_recipe(path).stage_names() == ["easy", "cold", "band", "rl"]

    def key(text, solver="a"):
        path.write_text(text)
        parts = keys.key_parts(read_recipe(path), "band", {"difficulty.model": solver})
        return keys.stage_key(parts)

    text = path.read_text()
    renamed = re.sub(r"\bcold\b", "start", text)
    assert key(text) == key(renamed) != key(text, "b")


def test_names_of_other_things_are_refused(tmp_path):
    path = graph(tmp_path)
    with pytest.raises(
        RecipeError, match=r"band\.difficulty\.model: easy makes data, and model is wanted. Name one of: cold"
    ):
        read_recipe(path, ["band.difficulty.model=easy"])
    with pytest.raises(
        RecipeError, match=r"no stage called 'colt'. Did you mean 'cold'\? A path or a hub name has a slash"
    ):
        read_recipe(path, ["band.difficulty.model=colt"])
    with pytest.raises(RecipeError, match="circle"):
        read_recipe(path, ["easy.difficulty={model: cold}"])
    with pytest.raises(
        RecipeError, match=r"curate\.difficulty\.model: 'cold' is to be a stage; name the stages under `stages`. A path"
    ):
        read_recipe(toys.recipe(tmp_path), ["curate.difficulty={model: cold}"])
    assert read_recipe(toys.recipe(tmp_path), ["curate.difficulty={model: ./cold}"]).node("curate").labels == {}


def test_a_missing_model_is_named_where_stages_are_repeated_too(tmp_path):
    path = graph(tmp_path)
    body = yaml.safe_load(path.read_text())
    del body["stages"]["band"]["difficulty"]["model"]
    body["repeat"] = {"rounds": 2, "stages": ["band", "rl"]}
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    with pytest.raises(RecipeError, match=r"difficulty\.model: this field is required"):
        read_recipe(path)


def test_the_model_is_asked_with_the_system_prompt_that_it_was_trained_with(tmp_path, monkeypatch):
    tokenizer = train_tokenizer("char", 128, ["Reverse: ab ba Be brief.<|system|>"])
    save_model(toys.model("llama", len(tokenizer)), tokenizer, tmp_path / "m", {"system_prompt": "Be brief."})
    writer = Writer(tmp_path / "train.parquet", 10)
    for uid, text in (("a", "ab"), ("b", "ba")):
        prompt = [{"role": "user", "content": text}]
        writer.add(Problem(uid=uid, prompt=prompt, answer="ab", verifier="exact", source="s", licence="free"))
    writer.close()
    asked = []

    class Recording(TorchSampler):
        def extend(self, prefixes, *arguments, **options):
            asked.extend(tokenizer.decode(ids) for ids in prefixes)
            return super().extend(prefixes, *arguments, **options)

    monkeypatch.setattr(difficulty, "TorchSampler", Recording)
    counts, report = Counts(tmp_path), Report(tmp_path / "w")
    settings = Difficulty(model="./m", samples=2, max_tokens=4)
    rows_left = difficulty.band(
        settings, Model(path="./m"), str(tmp_path / "m"), out=tmp_path, counts=counts, report=report, seed=0
    )
    assert set(rows_left) == {"train"} and len(asked) == 4
    assert all("Be brief." in text for text in asked)


TEXTS = [f"Say {letter}." for letter in "abcdefghijklmnopqrstuvw"]


def banded(folder, settings, ranks=None, answer=r"[a-m ]"):
    """Rows left of two splits of TEXTS, by the model that stands in `m` beside the folder."""
    folder.mkdir()
    for split, part in (("train", TEXTS[:17]), ("heldout", TEXTS[17:])):
        writer = Writer(folder / f"{split}.parquet", 10)
        for text in part:
            about = {"prompt": [{"role": "user", "content": text}], "answer": answer, "verifier": "regex"}
            writer.add(Problem(uid=text, source="s", licence="free", **about))
        writer.close()
    report, counts = Report(folder.with_suffix(".work")), Counts(folder)
    solver = str(folder.parent / "m")
    rows_left = difficulty.band(
        settings, Model(path="./m"), solver, out=folder, counts=counts, report=report, seed=0, ranks=ranks
    )
    counts.close()
    return rows_left


def solver(folder):
    tokenizer = train_tokenizer("char", 128, TEXTS)
    save_model(toys.model("llama", len(tokenizer)), tokenizer, folder / "m", {})


def test_servers_keep_the_rows_of_our_own_decoding(tmp_path):
    """At a temperature at which answers are all but certain, whatever numbers they are drawn with."""
    solver(tmp_path)
    server = StandIn(tmp_path / "served")
    about = {"model": "./m", "samples": 2, "max_tokens": 3, "temperature": 1e-4}
    sampler = {"url": server.url, "weights": str(tmp_path / "served")}
    for name, more in (("1", {}), ("2", {"sampler": sampler})):
        banded(tmp_path / name, Difficulty(**about, **more), answer=".*[a-h].*")
    server.shutdown()
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    dropped = (tmp_path / "1/report/dropped.jsonl").read_text()
    assert "solved in 0% of 2" in dropped and "solved in 100% of 2" in dropped
    assert server.calls.count("/v1/completions") >= len(TEXTS) and server.calls.count("/collective_rpc") == 1


def test_servers_decode_for_one_process():
    with pytest.raises(ValueError, match="or set processes: 1"):
        Difficulty(model="./m", processes=2, sampler={"serve": True})


def test_any_number_of_ranks_keeps_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(difficulty, "PROBLEMS_AT_ONCE", 5)
    solver(tmp_path)
    settings = Difficulty(model="./m", samples=4, max_tokens=3, low=0.1, high=0.9)
    alone = banded(tmp_path / "1", settings)
    assert 0 < alone["train"] < 17
    for count in (2, 3):
        folder = tmp_path / str(count)
        assert in_ranks(count, lambda ranks, folder=folder: banded(folder, settings, ranks)) == alone
        assert contents(folder) == contents(tmp_path / "1")
        progress = json.loads((tmp_path / f"{count}.work/progress.json").read_text())
        assert (progress["done"], progress["total"]) == (23, 23)


def test_ranks_are_not_in_the_key_and_the_job_says_how_many(tmp_path):
    recipes = [read_recipe(graph(tmp_path, **more)) for more in ({}, {"processes": 3})]
    parts = [keys.key_parts(recipe, "band", {"difficulty.model": "a"}) for recipe in recipes]
    assert keys.stage_key(parts[0]) == keys.stage_key(parts[1])
    jobs = [recipe.node("band").kind.job(recipe.node("band")) for recipe in recipes]
    assert [job["processes"] for job in jobs] == [1, 3]
    assert recipes[0].node("easy").kind.job(recipes[0].node("easy"))["processes"] == 1


@pytest.mark.slow
@pytest.mark.long
def test_pass_rates_of_a_stage_are_those_of_its_folder(tmp_path):
    """The real flow: the band is measured with the cold start, and runs again with it."""
    home, path, summary = tmp_path / "home", graph(tmp_path, samples=6, max_tokens=8), tmp_path / "s.json"
    sizes = ("--set", "cold.steps=300", "--set", "cold.tokens_per_step=1024", "--set", "band.sources.0.size=120")

    def run(*overrides):
        toys.whetstone("run", str(path), "--summary", str(summary), *sizes, *overrides, home=home)
        stages = json.loads(summary.read_text())["stages"]
        return stages, home / "runs" / stages["band"]["artifact"]

    first, by_stage = run()
    card = json.loads((by_stage / "report/card.json").read_text())
    assert card["rows"]["difficulty"] > 0 and sum(card["splits"].values()) > 0
    changed = toys.whetstone("plan", str(path), *sizes, "--set", "cold.seed=7", home=home).stdout
    planned = dict(re.findall(r"(\w+) \(\w+\)\s+(run|reuse)", changed))
    assert planned == {"easy": "reuse", "cold": "run", "band": "run", "rl": "run"}, changed
    folder = home / "runs" / first["cold"]["artifact"] / "model"
    _, by_path = run("--set", f"band.difficulty.model={folder}")
    assert (by_path / "train.parquet").read_bytes() == (by_stage / "train.parquet").read_bytes()
