"""What asking a model behind a server will take, before it is asked."""

from __future__ import annotations

import toys
import yaml

from pipelines.curate.run import run as curate
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report
from tasks.preflight import endpoints


def node(folder, **changes):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    model = {"endpoint": "m", "price": {"prompt": 1.0, "completion": 10.0}} | changes.pop("model", {})
    answers = {"kind": "sample", "data": "rows", "model": model, "k": 3, "sampling": {"max_tokens": 50}, **changes}
    body["curate"]["sources"][0]["size"] = 40
    path = folder / "asked.yaml"
    stages = {"rows": {"kind": "curate", **body["curate"]}, "answers": answers}
    path.write_text(yaml.safe_dump({"name": "x", "model": body["model"], "stages": stages}))
    return read_recipe(path).node("answers")


def test_before_there_are_data_a_bound_is_told_or_the_cost_of_one_problem(tmp_path):
    (bounded,) = endpoints.estimates(node(tmp_path, problems=20), None)
    assert (bounded.requests, bounded.prompt_tokens, bounded.completion_tokens, bounded.each) == (60, None, 3000, False)
    assert bounded.cost == 0.03 and str(bounded).endswith(
        "at most 3,000 completion tokens, cost at most 0.03 beside the prompts"
    )
    (single,) = endpoints.estimates(node(tmp_path, model={"price": None}), None)
    assert (single.requests, single.each, single.cost) == (3, True, None)
    assert str(single) == "answers asks m 3 times for each problem: at most 150 completion tokens"


def test_data_tell_prompts_too(tmp_path):
    asking = node(tmp_path)
    settings = asking.recipe.node("rows").settings
    (tmp_path / "data").mkdir()
    curate(settings, asking.recipe.model, out=tmp_path / "data", report=Report(tmp_path / "w"), seed=0)
    (known,) = endpoints.estimates(asking, tmp_path / "data")
    (fewer,) = endpoints.estimates(node(tmp_path, problems=5), tmp_path / "data")
    assert 60 < known.requests <= 120 and fewer.requests == 15 and fewer.completion_tokens == 750
    assert known.prompt_tokens is not None and 5 * known.requests < known.prompt_tokens < 50 * known.requests
    assert known.cost == (known.prompt_tokens + 10 * known.completion_tokens) / 1e6


def test_other_stages_ask_nobody(tmp_path):
    assert not list(endpoints.estimates(node(tmp_path).recipe.node("rows"), None))
    assert endpoints.of_node(node(tmp_path))["answers.model"].endpoint == "m"


def test_an_evaluation_tells_its_cost_too(tmp_path):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    price = {"prompt": 1.0, "completion": 10.0}
    tasks = [
        {"name": "sums", "limit": 10, "samples": 3},
        {"name": "words", "benchmark": "humaneval_instruct", "limit": 4},
        "gsm8k",
    ]
    models = ["base", {"endpoint": "m", "price": price}, {"endpoint": "free"}]
    stages = {"scores": {"kind": "evaluate", "models": models, "tasks": tasks[:1]}}
    path = tmp_path / "table.yaml"

    def told(*listed):
        stages["scores"]["tasks"] = [*listed]
        path.write_text(yaml.safe_dump({"name": "x", "model": body["model"], "stages": stages}))
        return [*endpoints.estimates(read_recipe(path).node("scores"), None)]

    priced, free = told(tasks[0])
    assert (priced.model, priced.requests, priced.completion_tokens, priced.each) == ("m", 30, 30 * 12, False)
    assert priced.prompt_tokens is not None and 5 * 30 < priced.prompt_tokens < 30 * 30
    assert priced.cost == (priced.prompt_tokens + 10 * 360) / 1e6 and free.cost is None and free.requests == 30
    (priced, _) = told(*tasks)
    assert (priced.requests, priced.prompt_tokens, priced.completion_tokens) == (34, None, 360 + 4 * 1024)
    assert str(priced).endswith("completion tokens, cost at most 0.04456 beside the prompts; gsm8k not counted")
    assert str(told("gsm8k")[1]) == "scores asks free; gsm8k not counted"
    assert [*endpoints.of_node(read_recipe(path).node("scores"))] == ["scores.models.1", "scores.models.2"]
