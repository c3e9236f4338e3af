"""The Berkeley function-calling leaderboard's single turns: calls of one or more functions, or none, through the verifier `tool_calls`.

Columns, prompts and rules are those of ShishirPatil/gorilla at 6ea5797 (`berkeley-function-call-leaderboard/bfcl_eval`): categories simple,
multiple, parallel, parallel_multiple, irrelevance and their live ones, for Python. `bfcl` offers the functions as tools through the model's
chat template, with names in which `_` stands for a point, `bfcl_prompt` in a system message, for calls in text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation import own_rows
from evaluation.own_rows import RowFault
from pipelines.data.chat import with_system_prompt
from pipelines.verifiers._allowed_calls import NESTED, TYPES

COLUMNS: dict[str, type | tuple[type, ...]] = {"id": str, "question": list, "function": list}
ANSWERS, GROUND_TRUTH = "possible_answer", "ground_truth"
"""The folder beside a file of questions that has its answers, as in the project, and their column, which a question may have itself."""
JUDGED = ("simple", "simple_python", "multiple", "parallel", "parallel_multiple")
NONE, ANY = "irrelevance", "relevance"
"""Categories that want no call, and any call."""
_HINT = " Note that the provided function is in Python 3 syntax."
_SYSTEM = (
    "You are an expert in composing functions.You are given a question and a set of possible functions. Based on the question, you "
    "will need to make one or more function/tool calls to achieve the purpose. If none of the functions can be used, point it out. If "
    "the given question lacks the parameters required by the function, also point it out.\n\nYou should only return the function calls "
    "in your response.\n\nIf you decide to invoke any of the function(s), you MUST put it in the format of "
    "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)].  You SHOULD NOT include any other text "
    "in the response.\n\nAt each turn, you should try your best to complete the tasks requested by the user within the current turn. "
    "Continue to output functions to call until you have fulfilled the user's request to the best of your ability. Once you have no more "
    "functions to call, the system will consider the current turn complete and proceed to the next turn or task.\n\nHere is a list of "
    "functions in json format that you can invoke.\n{functions}\n"
)
_JSON_TYPES = {"float": "number", "dict": "object", "tuple": "array", "any": "string"}
Function = dict[str, Any]


def companions(path: Path) -> list[Path]:
    """The answers that belong to a file of questions."""
    answers = path.parent / ANSWERS / path.name
    return [answers] if answers.is_file() else []


def documents(data: str, *, as_text: bool) -> Iterator[dict[str, Any]]:
    """A document for each question of a file.

    Args:
        as_text: calls are to be written as BFCL's text format has them, and the functions stand in a system message.

    Raises:
        DataError: a file cannot be read, or a row of it cannot be asked.
    """
    answers = {
        row["id"]: (place, row[GROUND_TRUTH])
        for file in companions(Path(data).expanduser())
        for place, row in own_rows.rows(file, {"id": str, GROUND_TRUTH: list})
    }
    for place, row in own_rows.rows(data, COLUMNS):
        category = category_of(place, row["id"])
        functions = _functions(place, row["function"])
        wanted: list[dict[str, Any]] = []
        if category.removeprefix("live_") not in (NONE, ANY):
            at, truth = (place, row[GROUND_TRUTH]) if GROUND_TRUTH in row else answers.get(row["id"], (place, None))
            if truth is None:
                raise RowFault(
                    place, GROUND_TRUTH, f"is missing, and no {ANSWERS}/{Path(data).name} has the id {row['id']}"
                )
            wanted = _wanted(at, truth, functions)
        messages = _messages(place, row["question"])
        yield {"id": row["id"], "part": category} | _asked(functions, wanted, messages, category, as_text)


def _asked(
    functions: list[Function],
    wanted: list[dict[str, Any]],
    messages: list[dict[str, str]],
    category: str,
    as_text: bool,
) -> dict[str, Any]:
    """The columns that lm-eval, the model and the verifier read."""
    shown = [function | {"description": function.get("description", "") + _HINT} for function in functions]
    tools = ""
    if as_text:
        system = _SYSTEM.format(functions=json.dumps(shown, indent=4))
        messages = with_system_prompt(messages, system)
    else:
        tools = json.dumps([{"type": "function", "function": tool(function)} for function in shown])
        functions = [function | {"name": tool_name(function["name"])} for function in functions]
        wanted = [{tool_name(name): values for name, values in call.items()} for call in wanted]
    info: dict[str, Any] = {"functions": functions, ANSWERS: wanted}
    info |= {"format": "python"} if as_text else {}
    info |= {"any_call": True} if category.removeprefix("live_") == ANY else {}
    return {
        "question": "\n\n".join(message["content"] for message in messages),
        "messages": json.dumps(messages),
        **({"tools": tools} if tools else {}),
        "answer": json.dumps(
            [{"name": name, "arguments": _first(values)} for call in wanted for name, values in call.items()]
        ),
        "verifier": "tool_calls",
        "info": json.dumps(info),
    }


def tool_name(name: str) -> str:
    """A name that servers allow for a tool."""
    return name.replace(".", "_")


def tool(function: Function) -> Function:
    """A function as templates and servers want a tool: JSON schema instead of BFCL's types."""
    parameters = function["parameters"]
    schema = parameters | {"type": "object", "properties": _schemas(parameters["properties"])}
    return function | {"name": tool_name(function["name"]), "parameters": schema}


def _schemas(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: _schema(value) for name, value in properties.items()}


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type", "string")
    schema = value | {"type": _JSON_TYPES.get(kind, kind)}
    if kind == "float" and "description" in value:
        schema |= {"format": "float", "description": value["description"] + " This is a float type value."}
    if isinstance(value.get("properties"), dict):
        schema["properties"] = _schemas(value["properties"])
    if isinstance(value.get("items"), dict):
        schema["items"] = _schema(value["items"])
    return schema


def _first(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Arguments with the first allowed value of each parameter that must be there; objects, alone or in a list, have allowed values too."""

    def plain(option: Any) -> Any:
        if isinstance(option, list):
            return [plain(each) if isinstance(each, dict) else each for each in option]
        if isinstance(option, dict):
            return {
                name: each[0] for name, each in option.items() if isinstance(each, list) and each and "" not in each
            }
        return option

    return {name: plain(options[0]) for name, options in values.items() if "" not in options and options}


def category_of(place: str, name: str) -> str:
    """The category in an id, such as `live_parallel` of `live_parallel_0-0-0`.

    Raises:
        RowFault: it is none of those that are read.

    >>> category_of("x", "simple_python_12")
    'simple_python'
    """
    category = re.sub(r"_\d[\d-]*$", "", name)
    known = (*JUDGED, NONE, ANY)
    if category.removeprefix("live_") not in known:
        raise RowFault(
            place, "id", f"{name[:80]!r} is of none of the categories {', '.join(known)}, or live_ before one"
        )
    return category


def _messages(place: str, question: list[Any]) -> list[dict[str, str]]:
    if len(question) != 1 or not isinstance(question[0], list) or not question[0]:
        raise RowFault(place, "question", "is no list of one turn, which is a list of messages")
    for number, message in enumerate(question[0]):
        good = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not good:
            raise RowFault(place, f"question[0][{number}]", "is no object with the texts role and content")
    return [{"role": message["role"], "content": message["content"]} for message in question[0]]


def _functions(place: str, listed: list[Any]) -> list[Function]:
    for number, function in enumerate(listed):
        column = f"function[{number}]"
        parameters = function.get("parameters") if isinstance(function, dict) else None
        if not isinstance(parameters, dict) or not isinstance(function.get("name"), str):
            raise RowFault(place, column, "is no object with a name and parameters")
        if not isinstance(parameters.get("properties"), dict):
            raise RowFault(place, f"{column}.parameters.properties", "is no object")
        for name, schema in parameters["properties"].items():
            _check_type(place, f"{column}.parameters.properties.{name}", schema)
    return listed


def _check_type(place: str, column: str, schema: Any) -> None:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind not in TYPES:
        raise RowFault(place, f"{column}.type", f"{kind!r} is none of {', '.join(TYPES)}")
    if kind in NESTED:
        _check_type(place, f"{column}.items", schema.get("items") if isinstance(schema.get("items"), dict) else {})


def _wanted(place: str, listed: list[Any], functions: list[Function]) -> list[dict[str, Any]]:
    names = {function["name"] for function in functions}
    if not listed:
        raise RowFault(place, GROUND_TRUTH, "is empty")
    for number, call in enumerate(listed):
        column = f"{GROUND_TRUTH}[{number}]"
        if not isinstance(call, dict) or len(call) != 1 or not isinstance(next(iter(call.values())), dict):
            raise RowFault(place, column, "is no object of one function's name and its parameters")
        ((name, values),) = call.items()
        if name not in names:
            raise RowFault(place, column, f"{name!r} is not among the functions")
        for parameter, options in values.items():
            if not isinstance(options, list):
                raise RowFault(place, f"{column}.{name}.{parameter}", "is no list of allowed values")
    return listed
