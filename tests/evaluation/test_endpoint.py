"""Models behind a server in the table of an evaluation: the same answers have the same scores, wherever the model is."""

from __future__ import annotations

import json
import subprocess
import sys

import judge_server
import pytest
import toys
import yaml
from lm_eval.api.instance import Instance

from evaluation import benchmark_files, run
from evaluation.endpoint import EndpointLM
from evaluation.model import load
from pipelines.base.errors import RecipeError, UserError
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data.chat import completion_text, render_prompt
from pipelines.data.records import Stop
from pipelines.engine.distribution import generator
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.recipe.check import check
from pipelines.recipe.graph import endpoints
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report
from tasks import keys

QUESTIONS = [f"say {word}" for word in ("ab", "ba", "aab", "bab", "bb", "a", "b", "abb")]


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Folder of a random model, and a function that answers as a server that decodes it greedily would."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train_tokenizer("char", 128, [*QUESTIONS, "abcdefghij"])
    save_model(toys.model("llama", len(tokenizer)), tokenizer, folder / "model", {"stage": "sft"})
    lm = load(str(folder / "model"), Model(path=str(folder / "model")), batch_size=8)

    def answer(body):
        prompt = render_prompt(lm.tokenizer, body["messages"])
        sampling = Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"])
        (drawn,) = lm.sampler.extend([prompt], sampling, generator(lm.sampler.device, 0, 0))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(drawn.tokens)}
        finish = "length" if drawn.stop == Stop.LENGTH else "stop"
        return {"content": completion_text(lm.tokenizer, drawn.tokens), "finish_reason": finish, "usage": usage}

    return folder / "model", answer


def benchmark(folder, rows, name="words", **changes):
    benchmark_files.create(folder / name)
    path = folder / name / f"{name}.yaml"
    text = path.read_text()
    for key, value in changes.items():
        text = "\n".join(f"{key}: {value}" if line.startswith(f"{key}:") else line for line in text.splitlines())
    path.write_text(text + "\n")
    (folder / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


GREEDY = "{do_sample: false, max_gen_toks: 8, until: []}"


def row(question, answer, **more):
    return {"question": question, "answer": answer, "verifier": "exact", "info": "{}", **more}


def evaluated(folder, server, settings, checkpoints, model):
    (folder / "report").mkdir(parents=True)
    asked = {
        "models": [{"endpoint": "org/tiny", "url": server.url, "price": {"prompt": 1, "completion": 2}}],
        **settings,
    }
    flat = run.run(
        Evaluate.model_validate(asked), Model(path=str(model)), checkpoints=checkpoints, out=folder,
        report=Report(folder / "w"), seed=0, differences=[],
    )  # fmt: skip
    return flat, json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_a_served_model_has_the_scores_of_the_model(tiny, tmp_path):
    model, answer = tiny
    ask = {"temperature": 0, "max_tokens": 8}
    texts = [answer({"messages": [{"role": "user", "content": q}], **ask})["content"] for q in QUESTIONS]
    rows = [row(q, text if place % 3 else "no") for place, (q, text) in enumerate(zip(QUESTIONS, texts, strict=True))]
    include = benchmark(tmp_path / "own", rows, generation_kwargs=GREEDY, repeats=1, description='""')
    settings = {"tasks": ["words"], "include": include, "batch_size": 8}
    with judge_server.running(answer) as server:
        flat, body = evaluated(tmp_path / "out", server, settings, {"sft": str(model)}, model)
        assert len(server.bodies) == 8 and {b["temperature"] for b in server.bodies} == {0}
        evaluated(tmp_path / "again", server, settings, {"sft": str(model)}, model)
        assert len(server.bodies) == 8, "answers that are paid for are not asked again"
    served, own = (body["evaluation"][name]["words"] for name in ("org-tiny", "sft"))
    assert list(body["evaluation"]) == ["org-tiny", "sft"], "the last column is the last model"
    assert 0.5 < own["pass@1"]["value"] < 1 and own["pass@1"]["low"] < own["pass@1"]["value"]
    assert {name: served[name] for name in own} == own, "intervals, lengths and cut answers too"
    logs = [(tmp_path / "out" / "samples" / name / "words.jsonl").read_text() for name in ("org-tiny", "sft")]
    answers = [[json.loads(line)["filtered_resps"] for line in text.splitlines()] for text in logs]
    assert answers[0] == answers[1]
    counts = [flat[f"org-tiny/usage/{name}"] for name in ("prompt_tokens", "completion_tokens", "cost")]
    assert counts[0] > 0 and counts[2] == pytest.approx((counts[0] + 2 * counts[1]) / 1e6)


def test_an_endpoint_may_stand_alone(tmp_path):
    rows = [row("2 + 2?", "4"), row("3 + 3?", "6")]
    include = benchmark(
        tmp_path / "own", rows, generation_kwargs="{do_sample: true, temperature: 1.0, max_gen_toks: 8}"
    )
    replies = {
        "2 + 2?": {"message": {"content": "4", "reasoning": "two"}, "finish_reason": "stop"},
        "3 + 3?": (400, "no"),
    }
    with judge_server.running(lambda body: replies[body["messages"][-1]["content"]]) as server:
        settings = {"tasks": [{"name": "words", "samples": 2}], "include": include}
        settings["models"] = [{"endpoint": "m", "url": server.url, "label": "big"}]
        _, body = evaluated(tmp_path / "out", server, settings, {}, "org/unused")
        seeds = [b["seed"] for b in server.bodies]
        assert len(set(seeds)) == 4, "answers to a question are drawn apart"
    cells = body["evaluation"]["big"]["words"]
    assert cells["pass@1"]["value"] == 0.5 and cells["pass@1"]["n"] == 2 and "mean_length" not in cells


def instance(context, doc=None, **settings):
    return Instance("generate_until", doc or {}, (json.dumps(context), settings), 0, ("t", 0, 1))


def test_what_is_sent_and_what_is_read(tmp_path):
    calls = [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    code = "Sure:\n```python\ndef f():\n    return 1\n```\nDone."

    def rule(body):
        if "tools" in body:
            return {"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
        if body["messages"][-1]["content"] == "program":
            return {"content": code, "finish_reason": "stop"}
        return {"content": "one END two", "finish_reason": "length"}

    with judge_server.running(rule) as server:
        lm = EndpointLM(ModelEndpoint(endpoint="m", url=server.url), "scores.models.0", seed=0)
        user = [{"role": "user", "content": "x"}]
        begun = [{"role": "user", "content": "program"}, {"role": "assistant", "content": "Here:\n```python\n"}]
        answers = lm.generate_until(
            [
                instance(user, until=["END"], max_gen_toks=5),
                instance(user, {"tools": json.dumps([tool])}),
                instance(begun, until=["\ndef"]),
            ]
        )
        assert answers == [
            "one ",
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
            "def f():\n    return 1",
        ]
        sent = {body["messages"][-1]["content"] + str("tools" in body): body for body in server.bodies}
        assert sent["xFalse"]["stop"] == ["END"] and sent["xFalse"]["max_tokens"] == 5
        assert sent["xTrue"]["tools"] == [tool] and "stop" not in sent["programFalse"]
        assert sent["programFalse"]["messages"] == begun[:1], "a server lets a model begin its answers itself"
        assert lm.truncated["t", 0] == [False, False, False], "a text that ends an answer came before the limit"
        with pytest.raises(RecipeError, match="repetition_penalty, which no endpoint knows"):
            lm.generate_until([instance(user, repetition_penalty=2.0)])
        with pytest.raises(RecipeError, match="how likely given answers are"):
            lm.loglikelihood([instance(user)])
        server.rule = lambda body: (404, "no such model")
        with pytest.raises(UserError, match=r"scores\.models\.0\.endpoint: .*does not know it"):
            lm.generate_until([instance([{"role": "user", "content": "new"}])])


def recipe_of(folder, *changes, tasks=("palindromes",), models=("short", {"endpoint": "m"})):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    stages = {
        "rows": {"kind": "curate", **body["curate"]}, "short": {"kind": "sft", "data": "rows", **body["sft"]},
        "scores": {"kind": "evaluate", "models": list(models), "tasks": list(tasks)},
    }  # fmt: skip
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump({"name": "table", "model": body["model"], "stages": stages}))
    return read_recipe(path, list(changes))


def test_recipes_list_it_among_their_models(tmp_path):
    recipe = recipe_of(tmp_path, models=({"endpoint": "a"}, "short", {"endpoint": "b", "url": "http://h/v1"}))
    check(recipe)
    node = recipe.node("scores")
    assert [each.endpoint for each in node.settings.models] == ["a", "b"] and node.named("models") == ("short",)
    again = type(recipe).model_validate(recipe.model_dump(mode="json")).node("scores")
    assert again.settings == node.settings and [place for place, _ in endpoints(again, "models")] == [0, 2]
    alone = recipe_of(tmp_path, models=({"endpoint": "a"},))
    check(alone)
    assert alone.node("scores").named("models") == () and not alone.node("scores").reads_base

    with pytest.raises(RecipeError, match=r"scores\.processes: endpoints alone are evaluated"):
        check(recipe_of(tmp_path, "scores.processes=2", models=({"endpoint": "a"},)))
    check(recipe_of(tmp_path, "scores.processes=2"))

    def key(**way):
        made = recipe_of(tmp_path, models=("short", {"endpoint": "m", **way}))
        return keys.stage_key(keys.key_parts(made, "scores", {"sft": "0" * 16}))

    assert key() == key(url="http://h/v1", api_key_env="KEY", price={"prompt": 1}) != key(endpoint="other")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"tasks": ["boolean_expressions"]},
            r"scores\.models\.1: boolean_expressions asks how likely given answers are",
        ),
        ({"tasks": [{"name": "palindromes", "prefill": "x"}]}, r"palindromes has prefill"),
        ({"tasks": [{"name": "palindromes", "chat": False}]}, r"palindromes has chat: false"),
        ({"tasks": [{"name": "maze", "environment": {"task": "frozen_lake"}}]}, r"maze plays episodes"),
        ({"models": ["short", {"endpoint": "m"}, {"endpoint": "m"}]}, r"two endpoints are called m"),
        (
            {"models": ["base", {"endpoint": "m"}, "short", {"endpoint": "short"}]},
            r"scores\.models\.3\.label: short is the name of another column",
        ),
        ({"models": ["short", {"endpoint": "m", "urll": "x"}]}, r"scores\.models\.1\.urll"),
        ({"models": ["short", {"endpoint": "m", "url": "h:80"}]}, r"scores\.models\.1\.url: write an address"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_run(tmp_path, changes, problem):
    with pytest.raises(RecipeError, match=problem):
        check(recipe_of(tmp_path, **changes))


@pytest.mark.slow
@pytest.mark.long
def test_a_recipe_that_evaluates_an_endpoint_alone_runs(tmp_path):
    """From the command to the table; a second time nothing is asked."""
    path, answer = tmp_path / "table.yaml", {"content": "4", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}

    def whetstone_run():
        command = [sys.executable, "-m", "flows.cli.main", "run", str(path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    with judge_server.running(lambda body: answer) as server:
        asked = {"endpoint": "org/tiny", "url": server.url, "price": {"prompt": 1, "completion": 10}}
        tasks = [{"name": "sums", "limit": 4, "samples": 2}]
        stages = {"scores": {"kind": "evaluate", "models": [asked], "tasks": tasks}}
        model = yaml.safe_load(toys.recipe(tmp_path).read_text())["model"]
        path.write_text(yaml.safe_dump({"name": "table", "model": model, "stages": stages}))
        assert "org-tiny" in whetstone_run() and len(server.bodies) == 8
        assert "nothing it reads has changed" in whetstone_run() and len(server.bodies) == 8
