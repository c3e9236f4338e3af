"""One record out of many conventions: TRL, verl, open-r1, verifiers, GSM8K, and columns named by the recipe."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

from pipelines import environments, tools, verifiers
from pipelines.curate import labelled, preferences
from pipelines.curate.cells import ORIGIN, Cells, missing
from pipelines.curate.values import RowError, check_text, kind, normalise, parse_json, plain, scalar_text, text_of
from pipelines.data import chat, pairs, steps
from pipelines.data.records import PREFERENCES, RAW_TEXT, TURN_WEIGHTS, Message, Problem
from pipelines.errors import DataError, UserError
from pipelines.recipe.settings import Source
from pipelines.stage.files import dumps

PROMPTS = ("prompt", "problem", "question", "instruction", "input", "query", "Question")
ANSWERS = ("answer", "ground_truth", "target", "final_answer", "label", "output", "Answer")
SOLUTIONS = ("solution", "completion", "response", "rationale", "generated_solution")
LABEL = "label"
ROLES = ("system", "user", "assistant", "tool")
UID_CHARACTERS = 64
_PLACEHOLDER = re.compile(r"\{prompt\}|\{metadata\.(\w+)\}")
_BOXED = re.compile(r"\\boxed\s*\{")
_GSM8K = "####"


def to_problem(row: dict[str, Any], source: Source, *, self_check: bool) -> Problem:
    """A record from a raw row.

    Args:
        row: the columns.
        source: says which columns hold what, where it is not recognised.
        self_check: require that the gold answer verifies itself.

    Raises:
        RowError: the field and the reason.
    """
    row = row if isinstance(row, Cells) else Cells(row)
    for column in source.remove_columns:
        row.pop(column, None)
    if source.text_column is not None:
        return _raw_text(row, source)
    pair = _pair(row, source)
    if not pair and (single := _labelled(row)):
        row.use(pairs.COMPLETION, LABEL)
        pair, row = single, row.changed({k: v for k, v in row.items() if k not in (pairs.COMPLETION, LABEL)})
    if not pair and (pair := labelled.of_row(row)):
        row.use("completions", "labels")
    prompt = _prompt(_with_prompt(row) if pair else row, source)
    answer, solution = ("", None) if pair and _no_answer(row, source) else _answer(row, source)
    verifier = source.verifier or row.name("verifier") or ("exact" if pair and not answer else "math")
    if verifier not in verifiers.VERIFIERS:
        raise RowError("verifier", "unknown verifier", repr(verifier[:40]))
    info = _info(row, "info") | _info(row, "extra_info")
    info.setdefault("split", source.split)
    if info.get("environment") in environments.OUTSIDE and source.kind in ("file", "hub"):
        raise RowError("info.environment", "rows of files may not name an environment that runs code or asks a server")
    _corpus(source, verifier, info)
    _tools(row, source, info)
    if solution:
        info["solution"] = solution
    if source.preferences:
        info[PREFERENCES] = preferences.drawn(source.preferences, source.seed, prompt)
        prompt = chat.with_preferences(prompt, info[PREFERENCES])
    if weights := _turn_weights(row, source):
        info[TURN_WEIGHTS] = weights
    name = row.name("data_source") or str(source.task or source.path)
    uid = _uid(row, source)
    row.keep_answer(row.column(source, "answer", ANSWERS), info)
    row.keep_rest(info)
    if self_check and not (pair and not answer):
        try:
            example = verifiers.gold(verifier, answer, info)
            verdict = verifiers.verify(verifier, example or "", answer, info)
        except DataError as error:
            raise RowError("verifier", "the verifier refuses the row", str(error)[:200]) from error
        if not verdict.correct if example is not None else verdict.score is None:
            verdict_text = f"{answer[:80]!r} is {verdict.status}"
            raise RowError("answer", f"does not verify itself with {verifier}", verdict_text)
    own_uid, uid = uid, uid or problem_uid(name, prompt)
    if pair:
        info |= {ORIGIN: problem_uid(name, prompt), **pair}
        texts = (*pairs.TEXTS, pairs.COMPLETION, *pairs.PARTS, steps.STEPS)
        told = "\0".join(str(pair[each]) for each in texts if each in pair)
        uid = own_uid or problem_uid(name, [*prompt, {"role": "pair", "content": told}])
    return Problem(
        uid=uid, prompt=prompt, answer=answer, verifier=verifier, source=name, licence=source.licence, info=info
    )


def _raw_text(row: Cells, source: Source) -> Problem:
    """The record of a text that asks nothing."""
    column = str(source.text_column)
    value = row.get(column)
    text = "" if missing(value) else normalise(text_of(value, column))
    if not text:
        raise RowError(column, "no text")
    name = row.name("data_source") or str(source.task or source.path)
    info = {"split": source.split, RAW_TEXT: text}
    uid = problem_uid(name, [{"role": "text", "content": text}])
    return Problem(uid=uid, prompt=[], answer="", verifier="exact", source=name, licence=source.licence, info=info)


def _pair(row: Cells, source: Source) -> dict[str, Any]:
    """What `info` holds of a row with the columns `chosen` and `rejected`, {} for any other; messages count by their last one."""
    if any(missing(row.get(name)) for name in pairs.TEXTS):
        return {}
    pair: dict[str, Any] = {name: _last_text(row[name], name) for name in pairs.TEXTS} | _parts(row, source)
    row.use(*pairs.TEXTS, *pairs.PARTS, *pairs.VALUES, *pairs.CRITIQUES)
    if pair["chosen"] == pair["rejected"] and not pair.keys() & set(pairs.PARTS):
        raise RowError("rejected", "it is the chosen text", "a pair has two different texts")
    for name in pairs.VALUES:
        if not missing(row.get(name)):
            try:
                pair[name] = float(row[name])
            except (TypeError, ValueError):
                raise RowError(name, "not a number", f"it is {kind(row[name])}") from None
            if not math.isfinite(pair[name]):
                raise RowError(name, "not a finite number")
    if not 0 < pair.get(pairs.SHARE, 1.0) <= 1:
        raise RowError(pairs.SHARE, "not above 0 and at most 1", "four people of five are 0.8")
    for name in pairs.CRITIQUES:
        if not missing(row.get(name)):
            pair[name] = normalise(_last_text(row[name], name))
    user = row.name(pairs.USER)
    return pair if user is None else pair | {pairs.USER: user}


def _parts(row: Cells, source: Source) -> dict[str, Any]:
    """What makes a row a pair of parts of episodes, {} for two answers to one prompt."""
    parts: dict[str, Any] = {}
    for name in (each for each in pairs.PARTS if not missing(row.get(each)) and row[each] != []):
        value, is_prompt = row[name], name == pairs.REJECTED_PROMPT
        if is_prompt and (source.prompt_template or source.system or "system" in source.columns):
            raise RowError(name, "`system` and `prompt_template` reach one prompt only", "write both prompts in full")
        value = [{"role": "user", "content": value}] if is_prompt and isinstance(value, str) else value
        if not isinstance(value, list):
            raise RowError(name, "not a list of messages", f"it is {kind(value)}")
        read = _messages(value, name) if is_prompt else [_message(each, n, name) for n, each in enumerate(value, 1)]
        if not is_prompt and not pairs.alternates(read):
            raise RowError(name, "not turns", "a message of the assistant's, then the reply to it, and so on")
        parts[name] = [{"role": message["role"], "content": normalise(message["content"])} for message in read]
    return parts


def _labelled(row: Cells) -> dict[str, Any]:
    """What `info` holds of a row with a completion and a label that is true or false (TRL's unpaired preferences), {} for any other."""
    if missing(row.get(pairs.COMPLETION)) or not isinstance(row.get(LABEL), bool):
        return {}
    labelled = {pairs.COMPLETION: _last_text(row[pairs.COMPLETION], pairs.COMPLETION), pairs.DESIRABLE: row[LABEL]}
    return labelled | ({"solution": labelled[pairs.COMPLETION]} if row[LABEL] else {})


def _last_text(value: Any, column: str) -> str:
    """A text, or that of a list of messages, whose last one must be the assistant's."""
    if not isinstance(value, list):
        return text_of(value, column)
    last = value[-1]
    if not isinstance(last, dict) or last.get("role") != "assistant":
        raise RowError(column, "its last message is not the assistant's")
    return _content(last.get("content"), len(value), column)


def _with_prompt(row: Cells) -> Cells:
    """The row with the prompt that its chosen messages hold, where it has no column for it (TRL's implicit prompt)."""
    if any(not missing(row.get(name)) for name in (*PROMPTS, "messages")) or not isinstance(row.get("chosen"), list):
        return row
    return row.changed({**row, "prompt": row["chosen"][:-1]})


def _no_answer(row: Cells, source: Source) -> bool:
    column = row.column(source, "answer", ANSWERS)
    return (column is None or missing(row[column])) and not isinstance(row.get("reward_model"), dict)


def problem_uid(source: str, prompt: list[Message]) -> str:
    """32 hexadecimal characters that depend on the source's name and the prompt only."""
    return hashlib.sha256(dumps([source, prompt]).encode()).hexdigest()[:32]


def _uid(row: Cells, source: Source) -> str | None:
    """The row's own uid; None where it has none and the recipe names no column for it."""
    value = row.pick(source, "uid", ("uid",))
    if missing(value) and "uid" not in source.columns:
        return None
    if isinstance(value, (bool, float)):
        raise RowError("uid", "not text or a whole number", f"it is {kind(value)}")
    uid = scalar_text(value, "uid").strip()
    if not uid:
        raise RowError("uid", "it is empty")
    if len(uid) > UID_CHARACTERS or not uid.isprintable():
        raise RowError("uid", f"over {UID_CHARACTERS} characters, or not printable", repr(uid[:80]))
    return uid


def _info(row: Cells, column: str) -> dict[str, Any]:
    """The cell as an object of JSON's types; text is taken as JSON, as the verifiers library writes it."""
    value = row.get(column)
    row.use(column)
    if isinstance(value, (str, bytes)):
        text = text_of(value, column)
        value = parse_json(text, column) if text.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RowError(column, "not an object", f"it is {kind(value)}")
    info: dict[str, Any] = plain(value, column)
    if not isinstance(info.get("solution", ""), str):
        raise RowError(column, "its solution is not text", f"it is {kind(info['solution'])}")
    return info


def _corpus(source: Source, verifier: str, info: dict[str, Any]) -> None:
    """Give a file's row the corpus that its source names. It may not name another, whose content would be in no stage's key.

    Raises:
        RowError: it searches, and the source has no corpus, or the row has another.
    """
    if source.kind not in ("file", "hub"):
        return
    searching = [info] if verifier == "retrieval" else []
    box = info.get("toolbox")
    if isinstance(box, list):
        box = info["toolbox"] = [{"kind": "search"} if spec == "search" else spec for spec in box]
        searching += [spec for spec in box if isinstance(spec, dict) and spec.get("kind") == "search"]
    for spec in searching:
        if source.corpus is None or spec.setdefault("corpus", source.corpus) != source.corpus:
            raise RowError("info.corpus", "rows of files name no corpus: give it as `corpus` of the source")


def _tools(row: Cells, source: Source, info: dict[str, Any]) -> None:
    """Put the schemas of the row's tools into its info: those of its `toolbox`, or what TRL's column `tools` holds.

    Raises:
        RowError: no such tools, or a row of a file that names code to be run.
    """
    if not info.get("toolbox"):
        if not missing(row.get("tools")) and "tools" not in info:
            info["tools"] = _schemas(row["tools"])
            row.use("tools")
        return
    specs = info["toolbox"]
    if not isinstance(specs, list) or not all(isinstance(spec, str | dict) for spec in specs):
        raise RowError("info.toolbox", "not a list of tools")
    kinds = [spec if isinstance(spec, str) else spec.get("kind") for spec in specs]
    unsafe = [name for name in kinds if name in tools.RUNS_CODE]
    if unsafe and source.kind in ("file", "hub"):
        raise RowError("info.toolbox", "rows of files may not name tools that run code", f"{unsafe[0]}")
    if "tools" not in info:
        try:
            info["tools"] = tools.toolbox(specs).schemas
        except UserError as error:
            raise RowError("info.toolbox", "no such tools", str(error)[:200]) from error


def _schemas(value: Any) -> list[dict[str, Any]]:
    value = parse_json(value, "tools") if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowError("tools", "not a list of schemas", f"it is {kind(value)}")
    return [plain(tool, "tools") for tool in value]


def _prompt(row: Cells, source: Source) -> list[Message]:
    """The normalised conversation that the policy is asked to continue."""
    value = row.pick(source, "prompt", PROMPTS)
    column = "prompt"
    if value is None and "prompt" not in source.columns and row.get("messages") is not None:
        value, column = row["messages"], "messages"
        row.use(column)
    if value is None or value == "":
        raise RowError("prompt", "no prompt", f"none of {', '.join(PROMPTS)}, messages" if column == "prompt" else "")
    if isinstance(value, list):
        messages = _messages(value, column)
    else:
        text = text_of(value, column)
        body = row.get("Body")
        if isinstance(body, str):
            text = f"{check_text(body, 'Body').rstrip(' .')}. {text}"
            row.use("Body")
        messages = [{"role": "user", "content": text}]
    if not any(message["role"] == "user" and normalise(message["content"]) for message in messages):
        raise RowError(column, "the prompt is empty", "no user message with text")
    if source.prompt_template:
        messages[-1]["content"] = _fill(source.prompt_template, messages[-1]["content"], row)
    system = source.system or (row.pick(source, "system", ()) if "system" in source.columns else None)
    if not missing(system) and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": text_of(system, "system")})
    return [{"role": message["role"], "content": normalise(message["content"])} for message in messages]


def _messages(value: list[Any], column: str) -> list[Message]:
    """Messages up to where the assistant is to speak: answers at the end are left out."""
    if not value:
        raise RowError(column, "an empty list of messages")
    messages = [_message(message, number, column) for number, message in enumerate(value, 1)]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise RowError(column, "only assistant messages")
    return messages


def _message(message: Any, number: int, column: str) -> Message:
    if not isinstance(message, dict) or "role" not in message:
        raise RowError(column, "not a list of messages with role and content", f"entry {number} is {kind(message)}")
    role = message["role"]
    if role not in ROLES:
        raise RowError(column, "unknown role", f"message {number}: {str(role)[:40]!r}, known: {', '.join(ROLES)}")
    called = message.get("tool_calls")
    if not called:
        return {"role": role, "content": _content(message.get("content"), number, column)}
    before = _content(message["content"], number, column) if message.get("content") else ""
    return {"role": role, "content": "\n".join([before, *_calls(called, number, column)]).lstrip("\n")}


def _turn_weights(row: Cells, source: Source) -> list[float]:
    """What each of the assistant's messages counts, the solution last, where one of them says so: `train` or `training` (true or false, as
    axolotl reads them), or `weight` (a number, as OpenAI's fine-tuning reads it). [] where none does."""
    column = row.column(source, "prompt", PROMPTS)
    asked = row.get("messages") if column is None else row[column]
    messages = list(asked) if isinstance(asked, list) else []
    while len(messages) > 1 and _role(messages[-1]) == _role(messages[-2]) == "assistant":
        del messages[-2]  # of several answers at the end the last one is the solution
    if not messages or _role(messages[-1]) != "assistant":
        answers: list[Any] = next(
            (row[name] for name in SOLUTIONS if isinstance(row.get(name), list) and row[name]), []
        )
        messages.append(answers[-1] if answers else {"role": "assistant"})
    marks = [_mark(message, place) for place, message in enumerate(messages, 1) if _role(message) == "assistant"]
    return [1.0 if mark is None else mark for mark in marks] if any(mark is not None for mark in marks) else []


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _mark(message: dict[str, Any], number: int) -> float | None:
    for name in ("train", "training"):
        value = message.get(name)
        if value is not None:
            if not isinstance(value, bool):
                raise RowError(name, "not true or false", f"message {number}: it is {kind(value)}")
            return float(value)
    value = message.get("weight")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise RowError("weight", "not a number from 0", f"message {number}: it is {kind(value)}")
    return float(value)


def _calls(value: Any, number: int, column: str) -> list[str]:
    """Tool calls as objects (OpenAI's form) as the text that chat templates write."""
    texts = []
    for call in value if isinstance(value, list) else [value]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowError(column, "a tool call without a function's name", f"message {number}")
        arguments = function.get("arguments") or {}
        arguments = parse_json(arguments, column) if isinstance(arguments, str) else plain(arguments, column)
        if not isinstance(arguments, dict):
            raise RowError(column, "a tool call whose arguments are no object", f"message {number}")
        texts.append(tools.call_text(function["name"], arguments))
    return texts


def _content(content: Any, number: int, column: str) -> str:
    """A message's text; parts of text are joined as chat templates do, with nothing between them."""
    if content is None:
        raise RowError(column, "a message without content", f"message {number}")
    if not isinstance(content, list):
        return text_of(content, column)
    texts = []
    for part in content:
        if isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            texts.append(text_of(part["text"], column))
        elif isinstance(part, str):
            texts.append(text_of(part, column))
        else:
            what = part.get("type") if isinstance(part, dict) else kind(part)
            raise RowError(column, "a content part that is not text", f"message {number}: {str(what)[:40]}")
    return "".join(texts)


def _fill(template: str, prompt: str, row: Cells) -> str:
    """The template with the prompt and entries of the row's metadata in it."""
    metadata = _metadata(row) if "{metadata." in template else {}

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key is None:
            return prompt
        if key not in metadata:
            raise RowError("info.metadata", f"prompt_template asks for {key!r}", f"it has {', '.join(metadata)[:200]}")
        entry = metadata[key]
        if not isinstance(entry, list):
            return scalar_text(entry, "info.metadata")
        texts = [scalar_text(item, "info.metadata") for item in entry]
        return ("" if all(len(text) == 1 for text in texts) else " ").join(texts)

    return _PLACEHOLDER.sub(value, template)


def _metadata(row: Cells) -> dict[str, Any]:
    metadata = _info(row, "info").get("metadata")
    if isinstance(metadata, str):
        metadata = parse_json(metadata, "info.metadata")
    if not isinstance(metadata, dict):
        raise RowError("info.metadata", "not an object, and prompt_template needs it", f"it is {kind(metadata)}")
    return metadata


def _solution(row: Cells, source: Source) -> str | None:
    """The worked solution: a column of its own, or the assistant's last message."""
    value = row.pick(source, "solution", SOLUTIONS)
    column = "solution"
    if value is None and isinstance(row.get("messages"), list):
        value, column = row["messages"][-1:], "messages"
        if not (value and isinstance(value[0], dict) and value[0].get("role") == "assistant"):
            return None
    if missing(value):
        return None
    if isinstance(value, list):
        if not isinstance(value[-1], dict):
            raise RowError(column, "not text or messages", f"it ends with {kind(value[-1])}")
        return _content(value[-1].get("content"), len(value), column)
    return text_of(value, column)


def _answer(row: Cells, source: Source) -> tuple[str, str | None]:
    """Gold answer and worked solution (or None)."""
    value = row.pick(source, "answer", ANSWERS)
    solution = _solution(row, source)
    reward_model = row.get("reward_model")
    if value is None and isinstance(reward_model, dict):
        value = reward_model.get("ground_truth")
        row.use("reward_model")
        row.drop("reward_model", reward_model.keys() - {"ground_truth", "style"})
    if value is None and solution is not None:
        value = boxed(solution)
    if isinstance(value, list):
        value = value[0] if value else None
    text = "" if value is None else normalise(scalar_text(value, "answer"))
    if not text:
        raise RowError("answer", "the row has no answer")
    how = source.answer_from
    worked = text.split(_GSM8K, 1)[1].strip() if _GSM8K in text else ""
    if how == "gsm8k" or (how is None and isinstance(value, str) and worked):
        if not worked:
            raise RowError("answer", "no '#### value' line (answer_from: gsm8k)")
        solution, text = solution or text, worked.replace(",", "").strip()
    elif how == "boxed" or (how is None and _BOXED.search(text)):
        inner = boxed(text)
        if inner is None:
            raise RowError("answer", r"no \boxed{} (answer_from: boxed)")
        solution, text = solution or text, inner
    if not text:
        raise RowError("answer", "the row has no answer", "nothing is left of it")
    return text, normalise(solution) if solution is not None else None


def boxed(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}`, braces balanced; None where there is none.

    >>> boxed(r"so \boxed{\frac{1}{2}} holds")
    '\\frac{1}{2}'
    """
    openings = list(_BOXED.finditer(text))
    if not openings:
        return None
    depth, start = 1, openings[-1].end()
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
    return None
