"""Rows as data sets of the hub have them: each becomes the record that its users mean, or is quarantined with a reason."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.curate import offered
from pipelines.curate.cells import Cells
from pipelines.curate.formats import read_file
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.recipe.settings import Source


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def read(row, **fields):
    """(conversation as texts, answer, verifier, solution), and the cells."""
    cells = Cells(row)
    problem = to_problem(cells, Source(kind="file", path="x.jsonl", **fields), self_check=True)
    return problem, cells


def said(problem):
    return [(message["role"], message["content"]) for message in problem.prompt]


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
GOLD = '[{"name": "add", "arguments": {"a": 1, "b": 2}}]'

RECORDS = {
    "Alpaca": ({"instruction": "Add the numbers", "input": "1 and 2", "output": "3"}, [("user", "Add the numbers\n\n1 and 2")], "3", "math", "3"),
    "Alpaca without input": ({"instruction": "1 + 2?", "input": "", "output": "3"}, [("user", "1 + 2?")], "3", "math", "3"),
    "BIG-Bench Hard": ({"input": "1 + 2?", "target": "3"}, [("user", "1 + 2?")], "3", "math", None),
    "LLaMA-Factory": ({"instruction": "And 1 + 2?", "input": "", "output": "3", "system": "S", "history": [["0 + 1?", "1"]]},
        [("system", "S"), ("user", "0 + 1?"), ("assistant", "1"), ("user", "And 1 + 2?")], "3", "math", "3"),
    "Dolly": ({"instruction": "Which number?", "context": "It says 3.", "response": "The number is 3.", "category": "qa"},
        [("user", "Which number?\n\nIt says 3.")], "", "exact", "The number is 3."),
    "BoolQ": ({"question": "is it?", "passage": "It is.", "answer": "3"}, [("user", "is it?\n\nIt is.")], "3", "math", None),
    "a context that the question has": ({"question": "It says 3. Which?", "context": "It says 3.", "answer": "3"}, [("user", "It says 3. Which?")], "3", "math", None),
    "ShareGPT": ({"conversations": [{"from": "human", "value": "1 + 2?"}, {"from": "gpt", "value": "It is \\boxed{3}"}]},
        [("user", "1 + 2?")], "3", "math", "It is \\boxed{3}"),
    "OpenHermes": ({"conversations": [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hi?", "weight": None}, {"from": "gpt", "value": "Hello."}]},
        [("system", "Be kind."), ("user", "Hi?")], "", "exact", "Hello."),
    "OpenThoughts": ({"system": "Think.", "conversations": [{"from": "user", "value": "1 + 2?"}, {"from": "assistant", "value": "So \\boxed{3}"}]},
        [("system", "Think."), ("user", "1 + 2?")], "3", "math", "So \\boxed{3}"),
    "chat": ({"messages": [user("Hi?"), assistant("Hello.")]}, [("user", "Hi?")], "", "exact", "Hello."),
    "UltraChat": ({"prompt": "One?", "messages": [user("One?"), assistant("1"), user("Two?"), assistant("2 it is")]},
        [("user", "One?"), ("assistant", "1"), ("user", "Two?")], "", "exact", "2 it is"),
    "TRL, conversational": ({"prompt": [user("Hi?")], "completion": [assistant("Hello.")]}, [("user", "Hi?")], "", "exact", "Hello."),
    "TRL, several turns": ({"prompt": [user("Hi?")], "completion": [assistant("Hello."), user("And?"), assistant("Bye.")]},
        [("user", "Hi?"), ("assistant", "Hello."), ("user", "And?")], "", "exact", "Bye."),
    "TRL, one text": ({"prompt": "Hi?", "completion": "Hello."}, [("user", "Hi?")], "", "exact", "Hello."),
    "an answer at the end of the prompt": ({"prompt": [user("Hi?"), assistant("Hello.")]}, [("user", "Hi?")], "", "exact", "Hello."),
    "Nemotron": ({"input": [system("detailed thinking on"), user("1 + 2?")], "output": "<think>\nx\n</think>\n\n\\boxed{3}", "system_prompt": "detailed thinking on"},
        [("system", "detailed thinking on"), ("user", "1 + 2?")], "3", "math", "<think>\nx\n</think>\n\n\\boxed{3}"),
    "NuminaMath": ({"problem": "1 + 2?", "solution": "So \\boxed{3}", "messages": [user("1 + 2?"), assistant("So \\boxed{3}")]},
        [("user", "1 + 2?")], "3", "math", "So \\boxed{3}"),
    "RLVR of Tulu": ({"messages": [user("1 + 2?")], "ground_truth": "3"}, [("user", "1 + 2?")], "3", "math", None),
    "DAPO": ({"prompt": [user("1 + 2?")], "reward_model": {"ground_truth": "3", "style": "rule"}}, [("user", "1 + 2?")], "3", "math", None),
    "two columns for a system message": ({"system_prompt": "S", "system": "S", "question": "1 + 2?", "answer": "3"},
        [("system", "S"), ("user", "1 + 2?")], "3", "math", None),
    "reasoning_content": ({"messages": [user("1 + 2?"), assistant("\\boxed{3}", reasoning_content="one, two")]},
        [("user", "1 + 2?")], "3", "math", "<think>\none, two\n</think>\n\n\\boxed{3}"),
    "thinking": ({"messages": [user("a?"), assistant("A", thinking="hm"), user("b?"), assistant("B", thinking="ah")]},
        [("user", "a?"), ("assistant", "<think>\nhm\n</think>\n\nA"), ("user", "b?")], "", "exact", "<think>\nah\n</think>\n\nB"),
    "reasoning that the content has": ({"messages": [user("a?"), assistant("<think>\nhm\n</think>\n\nA", reasoning_content="hm")]},
        [("user", "a?")], "", "exact", "<think>\nhm\n</think>\n\nA"),
    "calls at the end": ({"messages": [user("1 + 2?"), assistant("", tool_calls=[CALL])], "tools": [{"type": "function", "function": ADD}], "answer": GOLD},
        [("user", "1 + 2?")], GOLD, "tool_calls", CALL_TEXT),
    "calls at the end after a text": ({"messages": [user("1 + 2?"), assistant("I add.", tool_calls=[CALL])], "answer": GOLD, "verifier": "tool_calls"},
        [("user", "1 + 2?")], GOLD, "tool_calls", "I add.\n" + CALL_TEXT),
    "calls in a completion": ({"prompt": [user("1 + 2?")], "completion": [assistant(None, tool_calls=[CALL])]}, [("user", "1 + 2?")], "", "exact", CALL_TEXT),
    "xLAM": ({"query": "1 + 2?", "answers": GOLD, "tools": json.dumps([{"name": "add", "parameters": {"a": {"type": "int"}}}])},
        [("user", "1 + 2?")], GOLD, "tool_calls", CALL_TEXT),
    "APIGen-MT": ({"system": "P", "conversations": [{"from": "human", "value": "1 + 2?"}, {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": 2}}'},
        {"from": "observation", "value": "3"}, {"from": "gpt", "value": "Three."}]},
        [("system", "P"), ("user", "1 + 2?"), ("assistant", CALL_TEXT), ("tool", "3")], "", "exact", "Three."),
    "MMLU": ({"question": "Two?", "choices": ["10", "20", "30"], "answer": 1}, [("user", "Two?\nA. 10\nB. 20\nC. 30")], "B", "choice", None),
    "MMLU, places that are choices too": ({"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": 1}, [("user", "1 + 1?\nA. 1\nB. 2\nC. 3")], "B", "choice", None),
    "MMLU with a text verifier": ({"question": "Two?", "choices": ["10", "20"], "answer": 1, "verifier": "math"}, [("user", "Two?\nA. 10\nB. 20")], "20", "math", None),
    "MMLU-Pro": ({"question": "Which?", "options": ["x", "y"], "answer": "B", "answer_index": 1}, [("user", "Which?\nA. x\nB. y")], "B", "choice", None),
    "ARC": ({"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}, [("user", "Which?\nA. x\nB. y")], "B", "choice", None),
    "CommonsenseQA": ({"question": "Which?", "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}], "answerKey": "A"}, [("user", "Which?\nA. x\nB. y")], "A", "choice", None),
    "MedQA": ({"question": "Which?", "options": {"A": "x", "B": "y"}, "answer": "y", "answer_idx": "B"}, [("user", "Which?\nA. x\nB. y")], "B", "choice", None),
    "AQuA": ({"question": "Which?", "options": ["A)21", "B)22"], "rationale": "because", "correct": "B"}, [("user", "Which?\nA. 21\nB. 22")], "B", "choice", "because"),
    "RACE": ({"article": "Tom ran.", "question": "Who?", "options": ["Tom", "Ann"], "answer": "A"}, [("user", "Who?\n\nTom ran.\nA. Tom\nB. Ann")], "A", "choice", None),
    "C-Eval": ({"question": "Which?", "A": "x", "B": "y", "C": "z", "answer": "B"}, [("user", "Which?\nA. x\nB. y\nC. z")], "B", "choice", None),
    "columns A and B that are no choices": ({"question": "Which?", "A": "x", "B": "y", "answer": "7"}, [("user", "Which?")], "7", "math", None),
    "choices in a CSV": ({"question": "Which?", "choices": '["x", "y"]', "answer": "B"}, [("user", "Which?\nA. x\nB. y")], "B", "choice", None),
    "choices that the question shows": ({"question": "Which?\nA) x\nB) y", "choices": ["x", "y"], "answer": "y"}, [("user", "Which?\nA) x\nB) y")], "B", "choice", None),
    "SQuAD": ({"question": "1 + 2?", "context": "Sums.", "answers": {"text": ["3", "3"], "answer_start": [0, 0]}}, [("user", "1 + 2?\n\nSums.")], "3", "math", None),
    "one answer in a list": ({"question": "1 + 2?", "answer": ["3"]}, [("user", "1 + 2?")], "3", "math", None),
    "a list for a verifier of lists": ({"question": "Who?", "answer": ["a", "b"], "verifier": "overlap", "metric": "em"}, [("user", "Who?")], '["a", "b"]', "overlap", None),
    "IFEval": ({"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}], "verifier": "instructions"}, [("user", "Write.")], "", "instructions", None),
    "MBPP": ({"prompt": "Write f.", "answer": "def f(): return 1", "test_list": ["assert f() == 1"], "verifier": "python"}, [("user", "Write f.")], "def f(): return 1", "python", None),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_row_is_the_record_that_its_users_mean(name):
    row, prompt, answer, verifier, solution = RECORDS[name]
    problem, _ = read(row)
    assert said(problem) == prompt
    assert (problem.answer, problem.verifier, problem.info.get("solution")) == (answer, verifier, solution)


QUARANTINED = {
    "several answers": ({"question": "A root?", "answer": ["10", "-10"]}, "answer: several answers"),
    "several answers, SQuAD": ({"question": "Who?", "answers": {"text": ["Ann", "Ann B."], "answer_start": [0, 0]}}, "answer: several answers"),
    "a context that is no text": ({"question": "Who?", "answer": "3", "context": {"title": ["a"]}}, "context: not text"),
    "a picture": ({"question": "Who?", "answer": "3", "image": {"bytes": b"\x89", "path": None}}, "image: not text"),
    "a choice that is none": ({"question": "Who?", "choices": ["x", "y"], "answer": 7}, "answer: it is none of the choices"),
    "a choice that could be two": ({"question": "Who?", "choices": [1, 2, 3], "answer": 1}, "answer: it could be two of the choices"),
    "a text that could be two": ({"question": "Who?", "choices": ["1", "2", "3"], "answer": "1"}, "answer: it could be two of the choices"),
    "columns that disagree": ({"question": "Who?", "options": ["x", "y"], "answer": "B", "answer_index": 0}, "answer_index: another choice"),
    "choices without an answer": ({"question": "Who?", "choices": ["x", "y"]}, "answer: the row has no answer"),
    "a proof": ({"problem": "Prove it.", "solution": "Trivial."}, "answer: the row has no answer"),
    "a chat whose answer is missing": ({"messages": [user("a?"), assistant("b")], "answer": None}, "answer: the row has no answer"),
    "reasoning twice": ({"messages": [user("a?"), assistant("<think>\nx\n</think>\n\nb", reasoning_content="y")]}, "two texts of reasoning"),
    "Glaive": ({"system": "SYSTEM: f", "chat": "USER: Hi\n\n\nASSISTANT: Hello <|endoftext|>"}, "prompt: no prompt"),
    "SHP": ({"history": "a?", "human_ref_A": "a", "human_ref_B": "b", "labels": 1}, "prompt: no prompt"),
    "Search-R1": ({"prompt": [user("a?")], "reward_model": {"ground_truth": {"target": ["a"]}}}, "answer: not text or a number"),
}  # fmt: skip


@pytest.mark.parametrize("name", QUARANTINED)
def test_a_row_that_says_too_little_is_quarantined(name):
    row, reason = QUARANTINED[name]
    with pytest.raises(RowError, match=reason):
        read(row)


HISTORY = "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Who?\n\nAssistant: "
PAIRS = {
    "implicit prompt": ({"chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]}, ["q"], {"chosen": "a", "rejected": "b"}),
    "implicit prompt, histories that differ": (
        {"chosen": [user("q"), assistant("left"), user("now?"), assistant("good")], "rejected": [user("q"), assistant("right"), user("then?"), assistant("bad")]},
        ["q"], {"chosen": "good", "rejected": "bad", "chosen_turns": [assistant("left"), user("now?")], "rejected_turns": [assistant("right"), user("then?")]}),
    "implicit prompt, one history longer": (
        {"chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b"), user("sure?"), assistant("c")]},
        ["q"], {"chosen": "a", "rejected": "c", "rejected_turns": [assistant("b"), user("sure?")]}),
    "implicit prompts that differ": ({"chosen": [user("q"), assistant("a")], "rejected": [user("r"), assistant("b")]}, ["q"],
        {"chosen": "a", "rejected": "b", "rejected_prompt": [user("r")]}),
    "the same history": ({"chosen": [user("q"), assistant("h"), user("r"), assistant("a")], "rejected": [user("q"), assistant("h"), user("r"), assistant("b")]},
        ["q", "h", "r"], {"chosen": "a", "rejected": "b"}),
    "UltraFeedback": ({"prompt": "q", "chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")], "score_chosen": 8.5, "score_rejected": 2},
        ["q"], {"chosen": "a", "rejected": "b", "chosen_score": 8.5, "rejected_score": 2.0}),
    "a system message in front": ({"prompt": "q", "chosen": [system("s"), user("q"), assistant("a")], "rejected": [system("s"), user("q"), assistant("b")]},
        ["s", "q"], {"chosen": "a", "rejected": "b"}),
    "answers alone": ({"prompt": [user("q")], "chosen": [assistant("a")], "rejected": [assistant("b")]}, ["q"], {"chosen": "a", "rejected": "b"}),
    "answers of several turns": ({"prompt": [user("q")], "chosen": [assistant("x"), user("y"), assistant("a")], "rejected": [assistant("b")]},
        ["q"], {"chosen": "a", "rejected": "b", "chosen_turns": [assistant("x"), user("y")]}),
    "Orca": ({"system": "s", "question": "q", "chosen": "a", "rejected": "b"}, ["s", "q"], {"chosen": "a", "rejected": "b"}),
    "HH-RLHF": ({"chosen": HISTORY + "A helper.", "rejected": HISTORY + "Go away."}, ["Hi.", "Hello.", "Who?"], {"chosen": "A helper.", "rejected": "Go away."}),
    "a call": ({"chosen": [user("q"), assistant("", tool_calls=[CALL])], "rejected": [user("q"), assistant("b")]}, ["q"], {"chosen": CALL_TEXT, "rejected": "b"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_keeps_all_of_both_conversations(name):
    row, prompt, pair = PAIRS[name]
    problem, cells = read(row)
    assert [message["content"] for message in problem.prompt] == prompt
    assert {key: value for key, value in problem.info.items() if key not in ("split", "sampled_from")} == pair
    assert cells.lost <= {"chosen.tool_calls.id"}


def test_a_pair_of_another_prompt_is_quarantined():
    with pytest.raises(RowError, match="it begins with another prompt"):
        read({"prompt": "other", "chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]})


def test_what_of_a_message_no_record_holds_is_named():
    reply = {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add", "timestamp": None}
    row = {
        "messages": [user("1 + 2?") | {"weight": 0}, assistant(None, tool_calls=[CALL]), reply, assistant("3 it is")]
    }
    _, cells = read(row)
    assert cells.lost == {"messages.weight", "messages.tool_call_id", "messages.name", "messages.tool_calls.id"}
    answers = [user("a?"), assistant("b"), assistant("c")]
    assert read({"messages": answers})[1].lost == {"messages: answers before the last one"}
    _, cells = read(
        {"problem": "1 + 2?", "solution": "So \\boxed{3}", "messages": [user("1 + 2?"), assistant("<think>..")]}
    )
    assert cells.lost == {"the conversation's last answer (the solution is the column solution)"}


def test_nulls_that_arrow_fills_in_are_in_no_schema_and_no_call(tmp_path):
    def tool(name, **properties):
        return {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
        }

    tools = [[tool("weather", city={"type": "string"})], [tool("add", a={"type": "integer"}, b={"type": "integer"})]]
    calls = [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "add", "arguments": {"a": 1, "b": 2}}]
    messages = [
        [user("q"), assistant("x", tool_calls=[{"type": "function", "function": call}]), user("r")] for call in calls
    ]
    table = pa.table({"messages": messages, "tools": tools, "answer": [[call] for call in calls]})
    pq.write_table(table, tmp_path / "x.parquet")
    for number, row in enumerate(read_file(tmp_path / "x.parquet")):
        assert "None" in str(row.columns["tools"])
        problem, _ = read(row.columns)
        assert problem.info["tools"] == tools[number] and json.loads(problem.answer) == [calls[number]]
        assert "null" not in problem.prompt[1]["content"]


def test_a_null_that_a_schema_means_stays():
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"default": None}}}},
    }
    problem, _ = read({"question": "1 + 2?", "answer": "3", "tools": [tool]})
    assert problem.info["tools"] == [tool]


@pytest.mark.parametrize(
    "tool",
    [ADD, {"name": "now"}, {"name": "now", "parameters": None}, {"name": "w", "parameters": {"type": {"type": "str"}}}],
)
def test_tools_are_schemas_wherever_they_stand(tool):
    column, _ = read({"question": "1 + 2?", "answer": "3", "tools": json.dumps([tool])})
    (schema,) = column.info["tools"]
    assert schema["type"] == "function" and schema["function"]["name"] == tool["name"] in offered.signature(schema)
    assert read({"question": "1 + 2?", "answer": "3", "info": {"tools": [tool]}})[0].info["tools"] == [schema]
    with pytest.raises(RowError, match="tools: a tool without a name"):
        read({"question": "1 + 2?", "answer": "3", "tools": [{"description": "x"}]})


TEXTS = st.text("abc ", min_size=1, max_size=8).map(str.strip).filter(bool)


@given(st.lists(st.tuples(TEXTS, TEXTS, st.none() | TEXTS), min_size=1, max_size=4), st.booleans())
def test_every_text_of_a_conversation_is_in_the_record(turns, sharegpt):
    messages = []
    for asked, answered, thought in turns:
        messages.append({"from": "human", "value": asked} if sharegpt else user(asked))
        messages.append(assistant(answered, reasoning_content=thought))
    problem, _ = read({"messages": messages})
    texts = [message["content"] for message in problem.prompt] + [problem.info["solution"]]
    assert len(texts) == 2 * len(turns)
    for (asked, answered, thought), question, answer in zip(turns, texts[::2], texts[1::2], strict=True):
        assert question == asked and answer == (f"<think>\n{thought}\n</think>\n\n{answered}" if thought else answered)


ANYTHING = st.recursive(st.none() | st.booleans() | st.integers(0, 3) | st.floats() | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("role", "content", "text", "label", "name", "arguments")), inner, max_size=3))  # fmt: skip
KNOWN = ("prompt", "instruction", "input", "output", "messages", "conversations", "chosen", "rejected", "completion", "label", "choices",
    "options", "answer", "answers", "answer_index", "tools", "system", "context", "history", "other")  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KNOWN), ANYTHING, max_size=5))
def test_any_row_is_a_record_or_a_reason_and_no_column_is_lost(columns):
    row = {"question": "1 + 2?", "answer": "3"} | columns
    cells = Cells(row)
    try:
        problem = to_problem(cells, Source(kind="file", path="x.jsonl"), self_check=False)
    except RowError as error:
        assert error.field and error.reason
        return
    json.dumps(problem.info, allow_nan=False)
    for name, value in row.items():
        empty = value in (None, "", [], {}) or value != value
        assert empty or name in cells.used | cells.lost | cells.extra, name
