"""Small samples in the columns of published data sets: names and nesting are theirs, every sentence is our own.

Columns of Tulu 3, smoltalk2, OpenThoughts, ToolACE, xLAM and DAPO were looked up in the cards; the others are as their users know them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

THINGS = ("apples", "pears", "plums", "stones", "boats", "lamps")
"""What the rows count; one row each."""


def user(text: str) -> dict[str, str]:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    """An assistant's message."""
    return {"role": "assistant", "content": text}


def said(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    """Messages as ShareGPT writes them."""
    return [{"from": who, "value": text} for who, text in pairs]


def question(number: int) -> str:
    """What row `number` asks."""
    return f"Ann has {number + 2} {THINGS[number]} and gets 3 more. How many has she?"


def reply(number: int) -> str:
    """A sentence that answers it, without any mark around the number."""
    return f"She has {number + 5} {THINGS[number]} in the end."


def thought(number: int) -> str:
    """The same with its working and a box."""
    return f"I add {number + 2} and 3. So she has \\boxed{{{number + 5}}}"


def tool(number: int) -> dict[str, Any]:
    """A function, as xLAM describes one."""
    what = {"type": "int", "description": f"Number of {THINGS[number]}.", "default": 1}
    return {"name": f"count_{THINGS[number]}", "description": f"Counts {THINGS[number]}.", "parameters": {"n": what}}


def schema(number: int) -> dict[str, Any]:
    """The same function as a JSON schema."""
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    about = {"name": f"count_{THINGS[number]}", "description": f"Counts {THINGS[number]}.", "parameters": parameters}
    return {"type": "function", "function": about}


def call(number: int) -> str:
    """A call of it as JSON."""
    return json.dumps({"name": f"count_{THINGS[number]}", "arguments": {"n": number + 5}})


def texts(number: int) -> dict[str, Any]:
    """What most of the samples are written with."""
    return {"q": question(number), "r": reply(number), "t": thought(number), "g": str(number + 5)}


@dataclass(frozen=True)
class Published:
    """A sample of a data set and what it is good for."""

    columns: tuple[str, ...]
    """All columns, in the order of docs/data.md."""
    use: str
    """The stage that reads it: chat (SFT), answers (RLVR with a verifier), prompts (RLVR with a reward function), or pairs."""
    row: Any
    """Number → row."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the recipe's source says beside kind and path."""
    in_info: tuple[str, ...] = ()
    """Columns that are only kept in `info`."""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each thing, in the columns that the sample says it has."""
        rows = [self.row(number) for number in range(len(THINGS))]
        assert all(tuple(row) == self.columns for row in rows), (self.columns, tuple(rows[0]))
        return rows


def _named(names: str, use: str, row: Any, **more: Any) -> Published:
    columns = tuple(names.split(", "))
    return Published(columns, use, lambda n: dict(zip(columns, row(n, **texts(n)), strict=True)), **more)


def _two_turns(n: int, q: str, r: str) -> list[dict[str, str]]:
    return [user(f"May I ask about {THINGS[n]}?"), assistant("Please do."), user(q), assistant(r)]


def _choices(n: int) -> list[str]:
    return [f"{n + 4} {THINGS[n]}", f"{n + 5} {THINGS[n]}", f"{n + 6} {THINGS[n]}", "none"]


CHAT = {
    "UltraChat": _named("prompt, prompt_id, messages", "chat",
        lambda n, q, r, t, **_: (f"May I ask about {THINGS[n]}?", f"{n:064x}", _two_turns(n, q, r)), in_info=("prompt_id",)),
    "Tulu 3 SFT": _named("id, messages, source", "chat", lambda n, q, r, t, **_: (f"made_{n}", [user(q), assistant(r)], "ours/sums"),
        in_info=("id", "source")),
    "smoltalk": _named("messages, source", "chat", lambda n, q, r, t, **_: (_two_turns(n, q, r), "sums"), in_info=("source",)),
    "smoltalk2": _named("messages, chat_template_kwargs, source", "chat", lambda n, q, r, t, **_: (
        [user(q), assistant(f"<think>\n{t}\n</think>\n\n{r}")],
        {"custom_instructions": "", "enable_thinking": True, "python_tools": [], "xml_tools": []}, "sums"),
        in_info=("chat_template_kwargs", "source")),
    "no_robots": _named("prompt, prompt_id, messages, category", "chat", lambda n, q, r, **_: (q, f"{n:064x}", [user(q), assistant(r)], "Closed QA"),
        in_info=("prompt_id", "category")),
    "Capybara": _named("source, messages, num_turns", "chat", lambda n, q, r, **_: ("ours", _two_turns(n, q, r), 2), in_info=("source", "num_turns")),
    "OpenThoughts": _named("system, conversations", "chat", lambda n, q, r, t, **_: (
        "Think before you answer.", said(("user", q), ("assistant", f"<|begin_of_thought|>\n\n{r}\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n{t}\n\n<|end_of_solution|>")))),
    "OpenThoughts3": _named("difficulty, source, domain, conversations", "chat", lambda n, q, r, t, **_: (
        None, "ours", "math", said(("human", q), ("gpt", f"<think>\n{r}\n</think>\n\n{t}"))), in_info=("source", "domain")),
    "ShareGPT": _named("id, conversations", "chat", lambda n, q, r, t, **_: (
        f"x{n}_0", said(("human", f"May I ask about {THINGS[n]}?"), ("gpt", "Please do."), ("human", q), ("gpt", r))), in_info=("id",)),
    "SlimOrca": _named("conversations", "chat", lambda n, q, r, **_: ([
        {"from": "system", "value": "You help.", "weight": None}, {"from": "human", "value": q, "weight": 0.0}, {"from": "gpt", "value": r, "weight": 1.0}],)),
    "OpenOrca": _named("id, system_prompt, question, response", "chat", lambda n, q, r, **_: (f"flan.{n}", "You help.", q, r), in_info=("id",)),
    "LIMA": _named("conversations, source", "chat", lambda n, q, r, **_: ([q, r], "ours"), in_info=("source",)),
    "Alpaca": _named("instruction, input, output, text", "chat", lambda n, q, r, **_: (
        "Answer the question.", q if n % 2 else "", f"{r} I counted row {n}.", f"### Instruction:\nAnswer the question.\n\n### Input:\n{q}\n\n### Response:\n{r}")
        if n % 2 else (q, "", f"{r} I counted.", f"### Instruction:\n{q}\n\n### Response:\n{r}"), in_info=("text",)),
    "Dolly": _named("instruction, context, response, category", "chat", lambda n, q, r, **_: (
        (f"How many {THINGS[n]}?", q, r, "closed_qa") if n % 2 else (q, "", r, "open_qa")), in_info=("category",)),
    "MetaMathQA": _named("type, query, original_question, response", "chat", lambda n, q, r, **_: (
        "GSM_Rephrased", q, f"How many {THINGS[n]}?", f"{r} The answer is: {n + 5}"), in_info=("type", "original_question")),
    "TRL prompt/completion": _named("prompt, completion", "chat", lambda n, q, r, **_: (q, f" {r}")),
    "TRL prompt/completion, conversational": _named("prompt, completion", "chat", lambda n, q, r, **_: ([user(q)], [assistant(r)])),
    "ToolACE": _named("system, conversations", "chat", lambda n, q, r, **_: (
        f"You compose calls. Here are the functions in JSON: {json.dumps([tool(n)])}",
        said(("user", q), ("assistant", f"[count_{THINGS[n]}(n={n + 5})]"), ("tool", f'[{{"count": {n + 5}}}]'), ("assistant", r)))),
    "Hermes function calling": _named("id, conversations, tools, category, subcategory, task", "chat", lambda n, q, r, **_: (
        f"{n}", said(("system", "You call functions."), ("human", q), ("gpt", f"<tool_call>\n{call(n)}\n</tool_call>"),
            ("tool", f"<tool_response>\n{n + 5}\n</tool_response>"), ("gpt", r)), json.dumps([schema(n)]), "Sums", "Counting", "Count things"),
        in_info=("id", "category", "subcategory", "task")),
    "APIGen-MT": _named("conversations, tools, system", "chat", lambda n, q, r, **_: (
        said(("human", q), ("function_call", call(n)), ("observation", f'{{"count": {n + 5}}}'), ("gpt", r)), json.dumps([tool(n)]), "# Policy\nCount.")),
}  # fmt: skip

ANSWERS = {
    "GSM8K": _named("question, answer", "answers", lambda n, q, r, **_: (q, f"She has {n + 2} + 3 = <<{n + 2}+3={n + 5}>>{n + 5} of them.\n#### {n + 5}")),
    "DAPO-17k": _named("data_source, prompt, ability, reward_model, extra_info", "answers", lambda n, q, **k: (
        "math_dapo", [user(f'Solve the problem. End with "Answer: VALUE".\n\n{q}')], "MATH", {"ground_truth": k["g"], "style": "rule-lighteval/MATH_v2"}, {"index": f"{n}"}),
        in_info=("ability",)),
    "DAPO-17k, processed": _named("prompt, solution, data_source, source_prompt, ability, reward_model, extra_info", "answers", lambda n, q, **k: (
        q, k["g"], "math_dapo", [user(q)], "MATH", {"ground_truth": k["g"], "style": "rule-lighteval/MATH_v2"}, {"index": f"{n}"}),
        in_info=("source_prompt", "ability")),
    "NuminaMath-CoT": _named("source, problem, solution, messages", "answers", lambda n, q, t, **_: ("ours", q, t, [user(q), assistant(t)]), in_info=("source",)),
    "OpenMathInstruct-2": _named("problem, generated_solution, expected_answer, problem_source", "answers", lambda n, q, t, **k: (q, t, k["g"], "ours"),
        in_info=("problem_source",)),
    "MATH-500": _named("problem, solution, answer, subject, level, unique_id", "answers", lambda n, q, t, **k: (q, t, k["g"], "Algebra", 1, f"test/{n}.json"),
        in_info=("subject", "level", "unique_id")),
    "OpenThoughts, metadata": _named("problem, deepseek_reasoning, deepseek_solution, ground_truth_solution, domain, source, test_cases, starter_code", "answers",
        lambda n, q, r, t, **_: (q, r, t, t, "math", "ours", None, None), settings={"columns": {"answer": "ground_truth_solution"}},
        in_info=("deepseek_reasoning", "deepseek_solution", "domain", "source")),
    "Tulu 3 RLVR": _named("messages, ground_truth, dataset", "answers", lambda n, q, **k: ([user(q)], k["g"], "gsm8k"), in_info=("dataset",)),
    "MMLU": _named("question, subject, choices, answer", "answers", lambda n, q, **_: (q, "elementary_mathematics", _choices(n), 1), in_info=("subject",)),
    "MMLU-Pro": _named("question_id, question, options, answer, answer_index, cot_content, category, src", "answers", lambda n, q, **_: (
        n, q, _choices(n), "B", 1, "", "math", "ours"), in_info=("question_id", "category", "src")),
    "ARC": _named("id, question, choices, answerKey", "answers", lambda n, q, **_: (f"ours_{n}", q, {"text": _choices(n), "label": ["A", "B", "C", "D"]}, "B"), in_info=("id",)),
    "HellaSwag": _named("ind, activity_label, ctx_a, ctx_b, ctx, endings, source_id, split, split_type, label", "answers", lambda n, q, **_: (
        n, "Counting", q, "she", f"{q} she", [f"finds {choice}." for choice in _choices(n)], f"ours~{n}", "train", "indomain", "1"), settings={"columns": {"prompt": "ctx"}},
        in_info=("ind", "activity_label", "ctx_a", "ctx_b", "source_id", "split_type")),
    "xLAM": _named("id, query, answers, tools", "answers", lambda n, q, **_: (n, q, f"[{call(n)}]", json.dumps([tool(n)])), in_info=("id",)),
}  # fmt: skip

PROMPTS = {
    "prompts alone": _named("prompt", "prompts", lambda n, q, **_: (q,)),
    "prompts alone, conversational": _named("prompt, topic, length", "prompts", lambda n, q, **_: ([user(q)], THINGS[n], n + 20), in_info=("topic", "length")),
    "prompts alone, a column of your own": _named("scenario, stars", "prompts", lambda n, q, **_: (q, n), settings={"columns": {"prompt": "scenario"}}, in_info=("stars",)),
}  # fmt: skip

PAIRS = {
    "UltraFeedback": _named("prompt, prompt_id, chosen, rejected, messages, score_chosen, score_rejected", "pairs", lambda n, q, r, **_: (
        q, f"{n:064x}", [user(q), assistant(r)], [user(q), assistant("No idea.")], [user(q), assistant(r)], 8.0, 2.5), in_info=("prompt_id", "messages")),
    "Tulu 3 preferences": _named("id, source, chosen, rejected", "pairs", lambda n, q, r, **_: (
        f"{n}", "ours", [user(q), assistant(r)], [user(q), assistant("No idea.")]), in_info=("id", "source")),
    "smoltalk2 preferences": _named("chosen, rejected, prompt, chat_template_kwargs, source", "pairs", lambda n, q, r, **_: (
        [user(q), assistant(r)], [user(q), assistant("No idea.")], q, {"custom_instructions": "", "enable_thinking": False, "python_tools": [], "xml_tools": []}, "ours"),
        in_info=("chat_template_kwargs", "source")),
    "TRL preferences": _named("prompt, chosen, rejected", "pairs", lambda n, q, r, **_: (q, r, "No idea.")),
    "TRL preferences, conversational": _named("prompt, chosen, rejected", "pairs", lambda n, q, r, **_: ([user(q)], [assistant(r)], [assistant("No idea.")])),
    "TRL preferences, implicit prompt": _named("chosen, rejected", "pairs", lambda n, q, r, **_: ([user(q), assistant(r)], [user(q), assistant("No idea.")])),
    "Orca pairs": _named("system, question, chosen, rejected", "pairs", lambda n, q, r, **_: ("You help.", q, r, "No idea.")),
    "HH-RLHF": _named("chosen, rejected", "pairs", lambda n, q, r, **_: (f"\n\nHuman: {q}\n\nAssistant: {r}", f"\n\nHuman: {q}\n\nAssistant: No idea.")),
}  # fmt: skip

SAMPLES = {**CHAT, **ANSWERS, **PROMPTS, **PAIRS}
"""Data set → sample."""
