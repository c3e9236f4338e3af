"""BFCL: its columns are read, functions reach the model as tools or in text, calls are judged by the verifier."""

from __future__ import annotations

import json

import pytest
import toys

from evaluation import bfcl, harness
from evaluation.model import SamplerLM
from evaluation.own_rows import RowFault
from evaluation.scoring import process_results
from pipelines.base.errors import RecipeError
from pipelines.engine.models import train_tokenizer
from pipelines.recipe.settings import Evaluate

SMALL = harness.BENCHMARKS / "bfcl" / "small.jsonl"
FUNCTION = {
    "name": "shop.buy", "description": "Buy something.",
    "parameters": {
        "type": "dict",
        "properties": {"what": {"type": "string", "description": "A thing."}, "price": {"type": "float", "description": "At most."}},
        "required": ["what"],
    },
}  # fmt: skip
TRUTH = [{"shop.buy": {"what": ["tea", "green tea"], "price": [3.5, ""]}}]
ROW = {
    "id": "simple_python_0",
    "question": [[{"role": "user", "content": "Buy tea."}]],
    "function": [FUNCTION],
    "ground_truth": TRUTH,
}


def documents(folder, *rows, as_text=False, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(bfcl.documents(str(path), as_text=as_text))


def tagged(*calls):
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls
    )


def in_text(calls):
    texts = [f"{c['name']}({', '.join(f'{k}={v!r}' for k, v in c['arguments'].items())})" for c in calls]
    return f"[{', '.join(texts)}]"


def test_every_question_of_ours_has_an_answer_that_is_judged():
    categories = set()
    for doc, text in zip(
        bfcl.documents(str(SMALL), as_text=False), bfcl.documents(str(SMALL), as_text=True), strict=True
    ):
        gold = json.loads(doc["answer"])
        calls = tagged(*((call["name"], call["arguments"]) for call in gold)) or "I cannot do that."
        unwanted = doc["part"] == "irrelevance"
        others = [tagged(("x", {})), "Sure!"]
        assert process_results(doc, [[calls, *others]])["scores"] == [1.0, 0.0, float(unwanted)]
        assert process_results(text, [[in_text(json.loads(text["answer"])), "[x()]"]])["scores"] == [1.0, 0.0]
        categories.add(doc["part"])
    assert categories == {"simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"}


def test_functions_become_tools_with_names_and_types_that_servers_allow(tmp_path):
    (doc,) = documents(tmp_path, ROW)
    (tool,) = json.loads(doc["tools"])
    function = tool["function"]
    assert tool["type"] == "function" and function["name"] == "shop_buy" and function["parameters"]["type"] == "object"
    assert function["parameters"]["properties"]["price"] == {
        "type": "number",
        "format": "float",
        "description": "At most. This is a float type value.",
    }
    assert function["description"] == "Buy something. Note that the provided function is in Python 3 syntax."
    right, dotted = (tagged((name, {"what": "Green-tea", "price": 3.5})) for name in ("shop_buy", "shop.buy"))
    assert process_results(doc, [[right, dotted]])["scores"] == [1.0, 0.0]


def test_functions_stand_in_a_system_message_of_the_text_format(tmp_path):
    own = ROW | {"question": [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Buy tea."}]]}
    plain, doc = documents(tmp_path, ROW, own, as_text=True)
    system, user = json.loads(doc["messages"])
    assert system["content"].startswith("You are an expert in composing functions.You are given a question")
    assert (
        system["content"].endswith("\n\nBe kind.")
        and '"name": "shop.buy"' in system["content"]
        and user["role"] == "user"
    )
    assert "tools" not in doc and [m["role"] for m in json.loads(plain["messages"])] == ["system", "user"]
    assert process_results(
        doc, [['[shop.buy(what="tea")]', "```\nshop.buy(what='Tea', price=7/2)\n```", "[shop.buy('tea')]"]]
    )["scores"] == [1, 1, 0]


def test_answers_stand_beside_the_questions_as_in_the_project(tmp_path):
    question = {name: value for name, value in ROW.items() if name != "ground_truth"}
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "possible_answer" / "BFCL_v4_simple.json").write_text(
        json.dumps({"id": ROW["id"], "ground_truth": TRUTH}) + "\n"
    )
    assert documents(tmp_path, question, name="BFCL_v4_simple.json") == documents(tmp_path, ROW)
    assert bfcl.companions(tmp_path / "BFCL_v4_simple.json") and not bfcl.companions(tmp_path / "rows.jsonl")
    with pytest.raises(
        RowFault,
        match=r"rows.jsonl:1: ground_truth: is missing, and no possible_answer/rows.jsonl has the id simple_python_0",
    ):
        documents(tmp_path, question)


def test_relevance_wants_any_call_and_irrelevance_none(tmp_path):
    question = {name: value for name, value in ROW.items() if name != "ground_truth"}
    docs = documents(
        tmp_path, question | {"id": "live_relevance_0-0-0"}, question | {"id": "live_irrelevance_3-0-1", "function": []}
    )
    answers = [tagged(("shop_buy", {"what": "x"})), "I cannot.", "<tool_call>{"]
    assert [process_results(doc, [answers])["scores"] for doc in docs] == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": "simple_java_0"}, "id: 'simple_java_0' is of none of the categories simple"),
        ({"id": 3}, "id: is int, not str"),
        ({"question": []}, "question: is no list of one turn"),
        ({"question": [[{"role": "user"}]]}, r"question\[0\]\[0\]: is no object with the texts role and content"),
        ({"function": [{"name": "f"}]}, r"function\[0\]: is no object with a name and parameters"),
        ({"function": [FUNCTION | {"parameters": {}}]}, r"function\[0\].parameters.properties: is no object"),
        (
            {"function": [FUNCTION | {"parameters": {"properties": {"x": {"type": "long"}}}}]},
            r"properties.x.type: 'long' is none of string",
        ),
        (
            {"function": [FUNCTION | {"parameters": {"properties": {"x": {"type": "array"}}}}]},
            r"properties.x.items.type: None is none of",
        ),
        ({"ground_truth": []}, "ground_truth: is empty"),
        ({"ground_truth": [{"f": {}}]}, r"ground_truth\[0\]: 'f' is not among the functions"),
        (
            {"ground_truth": [{"shop.buy": {"what": "tea"}}]},
            r"ground_truth\[0\].shop.buy.what: is no list of allowed values",
        ),
    ],
)
def test_a_fault_has_its_file_row_and_column(tmp_path, change, told):
    with pytest.raises(RowFault, match=rf"rows.jsonl:2: .*{told}"):
        documents(tmp_path, ROW, ROW | change)


def test_the_model_reads_the_tools_in_its_template(tmp_path):
    tokenizer = train_tokenizer("char", 128, [SMALL.read_text()], tools=True)
    lm = SamplerLM(toys.model("llama", len(tokenizer)), tokenizer, batch_size=8)
    asked = []
    render = lm.apply_chat_template
    lm.apply_chat_template = lambda *arguments, **options: asked.append(render(*arguments, **options)) or asked[-1]
    settings = Evaluate.model_validate(
        {"tasks": [{"name": "bfcl_small", "limit": 2, "system": "Be brief.", "sampling": {"max_gen_toks": 2}}]}
    )
    metrics, logs = harness.evaluate(lm, harness.manager(settings), settings.tasks[0], settings)
    assert metrics["bfcl_small"]["pass@1"]["value"] == metrics["bfcl_small"]["simple_python pass@1"]["value"] == 0.0
    assert (
        len(asked) == 2
        and all("kitchen_set_timer" in text for text in asked[:1])
        and all("Be brief." in text for text in asked)
    )
    assert "Set a timer" in asked[0] + asked[1] and len(logs["bfcl_small"]) == 2


def test_without_a_template_there_is_no_place_for_tools():
    settings = Evaluate.model_validate({"tasks": [{"name": "bfcl_small", "chat": False}]})
    tokenizer = train_tokenizer("char", 128, [SMALL.read_text()])
    lm = SamplerLM(toys.model("llama", len(tokenizer)), tokenizer, batch_size=8)
    with pytest.raises(RecipeError, match=r"bfcl_small offers tools through the chat template.*bfcl_prompt"):
        harness.evaluate(lm, harness.manager(settings), settings.tasks[0], settings)
