"""One record out of many conventions: TRL, verl, open-r1, verifiers, GSM8K, Alpaca, ShareGPT, and columns named by the recipe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pipelines import environments, verifiers
from pipelines.base.errors import DataError
from pipelines.base.files import dumps
from pipelines.curate import choices, conversation, gold, offered, paired, preferences
from pipelines.curate.cells import ORIGIN, Cells, missing
from pipelines.curate.gold import ANSWERS, Gold
from pipelines.curate.values import RowError, check_text, kind, normalise, parse_json, plain, scalar_text, text_of
from pipelines.data import chat, pairs, steps
from pipelines.data.records import PREFERENCES, RAW_TEXT, TURN_WEIGHTS, Message, Problem
from pipelines.recipe.settings import Source
from pipelines.recipe.source import OF_ROWS

PROMPTS = ("prompt", "problem", "question", "instruction", "input", "query", "Question", "Problem")
CONVERSATIONS = ("messages", "conversations", "conversation")
SYSTEMS = ("system", "system_prompt", "system_message")
CONTEXTS = ("context", "passage", "article")
"""Columns of texts that a question is about."""
UID_CHARACTERS = 64
_PLACEHOLDER = re.compile(r"\{prompt\}|\{metadata\.(\w+)\}")


def to_problem(row: dict[str, Any], source: Source, *, self_check: bool, answered: bool = True) -> Problem:
    """A record from a raw row.

    Args:
        row: the columns; `Cells` learn which of them were used.
        source: says which columns hold what, where it is not recognised.
        self_check: require that the gold answer verifies itself.
        answered: a row without an answer is none (`answered.has_answers` of its source); else it may be a prompt alone.

    Raises:
        RowError: the field and the reason.
    """
    row = row if isinstance(row, Cells) else Cells(row)
    for column in source.remove_columns:
        row.pop(column, None)
    if source.text_column is not None:
        return _raw_text(row, source)
    pair = _pair(row, source)
    talk, last = _conversation(row, source)
    if pair and last.messages:
        row.lost.add("the answer at the end of the prompt")
    verifier = source.verifier or row.name("verifier")
    chosen_from = None if pair else choices.read(row)
    if pair and _no_answer(row, source):
        known = Gold()
    elif chosen_from is not None:
        known = _choice(row, source, chosen_from, last, verifier, answered)
    else:
        known = gold.read(row, source, last, verifier, answered=answered)
    prompt = _prompt(talk, row, source, chosen_from) + list(known.turns)
    info = _info(row, "info") | _info(row, "extra_info")
    _complete_info(info, row, source, verifier)
    if known.solution:
        info["solution"] = known.solution
    if source.preferences:
        info[PREFERENCES] = preferences.drawn(source.preferences, source.seed, prompt)
        prompt = chat.with_preferences(prompt, info[PREFERENCES])
    if weights := _turn_weights(talk, known):
        info[TURN_WEIGHTS] = weights
    name, origin = _names(row, source)
    own_uid = _uid(row, source)
    asked_for = [column for column in (*choices.COLUMNS, *CONTEXTS) if column in row.used]
    for raw in (row.column(source, "answer", ANSWERS), *asked_for):
        row.keep_raw(raw, info)
    row.keep_rest(info)
    verifier = verifier or known.verifier or ("math" if known.answer else "exact")
    answer = known.answer
    checked = bool(answer) or known.needs_none
    if checked and (self_check or known.doubtful) and (fault := _self_check(verifier, answer, info)):
        if not known.doubtful:
            raise fault
        answer, verifier = "", "exact"
    uid = own_uid or problem_uid(origin, prompt, info)
    if pair:
        info |= {ORIGIN: problem_uid(origin, prompt, info), **pair}
        texts = (*pairs.TEXTS, pairs.COMPLETION, *pairs.PARTS, steps.STEPS)
        told = "\0".join(str(pair[each]) for each in texts if each in pair)
        uid = own_uid or problem_uid(origin, [*prompt, {"role": "pair", "content": told}], info)
    return Problem(
        uid=uid, prompt=prompt, answer=answer, verifier=verifier, source=name, licence=source.licence, info=info
    )


def _self_check(verifier: str, answer: str, info: dict[str, Any]) -> RowError | None:
    """Why the gold answer does not verify itself, None where it does."""
    try:
        example = verifiers.gold(verifier, answer, info)
        verdict = verifiers.verify(verifier, example or "", answer, info)
    except DataError as error:
        return RowError("verifier", "the verifier refuses the row", str(error)[:200])
    if not verdict.correct if example is not None else verdict.score is None:
        return RowError(
            "answer", f"does not verify itself with {verifier}", f"{answer[:80]!r} is {verdict.status}{_why(verdict)}"
        )
    return None


def _why(verdict: verifiers.Verdict) -> str:
    """What a verifier failed with."""
    raised = [name.partition("/")[2] for name in verdict.components if name.startswith("error/")]
    return f" ({', '.join(raised)})" if raised else ""


def _complete_info(info: dict[str, Any], row: Cells, source: Source, verifier: str | None) -> None:
    """Put what the record offers into its info.

    Raises:
        RowError: no such verifier, or what a row of a file may not have.
    """
    if verifier is not None and verifier not in verifiers.known():
        raise RowError("verifier", "unknown verifier", repr(verifier[:40]))
    info.setdefault("split", source.split)
    played = info.get("environment")
    if played is not None and source.kind in OF_ROWS and environments.runs_outside(str(played)):
        raise RowError("info.environment", "rows of files may not name an environment that runs code or asks a server")
    offered.add_corpus(source, str(verifier), info)
    offered.add_tools(row, source, info)


def _raw_text(row: Cells, source: Source) -> Problem:
    """The record of a text that asks nothing."""
    column = str(source.text_column)
    value = row.get(column)
    text = "" if missing(value) else normalise(text_of(value, column))
    if not text:
        raise RowError(column, "no text")
    name, origin = _names(row, source)
    row.lost.update(each[:100] for each, value in row.items() if each not in row.used | {column} and not missing(value))
    info = {"split": source.split, RAW_TEXT: text}
    uid = problem_uid(origin, [{"role": "text", "content": text}], info)
    return Problem(uid=uid, prompt=[], answer="", verifier="exact", source=name, licence=source.licence, info=info)


def _pair(row: Cells, source: Source) -> dict[str, Any]:
    """What `info` holds of a row that compares or labels answers, {} for any other."""
    if all(not missing(row.get(name)) for name in pairs.TEXTS):
        column = row.column(source, "prompt", PROMPTS) or next((c for c in CONVERSATIONS if row.get(c)), None)
        talk = conversation.Talk() if column is None else _messages_of(row[column], column, row)
        talk.closing()
        return paired.read(row, source, talk.messages)
    return paired.labelled(row) or paired.stepwise(row)


def _messages_of(value: Any, column: str, row: Cells) -> conversation.Talk:
    """The messages of a list, or a text as the user's."""
    value = conversation.from_json(value)
    if column in CONVERSATIONS and isinstance(value, list) and all(isinstance(text, str) for text in value):
        value = [
            {"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(value)
        ]  # as LIMA has it
    if isinstance(value, list):
        return conversation.read(value, column, row)
    messages = conversation.transcript(text := text_of(value, column))
    return (
        conversation.Talk(messages, [None] * len(messages))
        if messages
        else conversation.Talk([{"role": "user", "content": normalise(text)}], [None])
    )


def _no_answer(row: Cells, source: Source) -> bool:
    column = row.column(source, "answer", ANSWERS)
    return (column is None or missing(row[column])) and not isinstance(row.get("reward_model"), dict)


def _names(row: Cells, source: Source) -> tuple[str, str]:
    """What a record names as its source, and the same for its uid, which the folder of a file must not change."""
    own = row.name("data_source")
    return (own, own) if own else (source.label, _wherever_it_lies(source))


def _wherever_it_lies(source: Source) -> str:
    """The source's label without the folder of an absolute path: the rows of a file that is moved, or copied to another machine, keep
    their uids, and with them their splits.

    >>> [_wherever_it_lies(Source(kind="file", path=path)) for path in ("/data/ann/rows.jsonl", "~/rows.jsonl", "data/rows.jsonl")]
    ['rows.jsonl', 'rows.jsonl', 'data/rows.jsonl']
    >>> [_wherever_it_lies(Source(kind="sql", query="select", path=f"sqlite:///{path}")) for path in ("/data/rows.db", "rows.db")]
    ['rows.db', 'sqlite:///rows.db']
    """
    return re.sub(r"^(sqlite:///)?[/~].*/", "", source.label)


def problem_uid(source: str, prompt: list[Message], info: Mapping[str, Any]) -> str:
    """32 hexadecimal characters that depend on the source's name, the prompt, and what it does not show (`environments.hidden`) only."""
    if unshown := environments.hidden(info):
        prompt = [*prompt, {"role": "hidden", "content": unshown}]
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


def _conversation(row: Cells, source: Source) -> tuple[conversation.Talk, conversation.Talk]:
    """The conversation that the policy is asked to continue, and the assistant's messages at its end."""
    column = row.column(source, "prompt", PROMPTS)
    dialogue = None if "prompt" in source.columns else next((c for c in CONVERSATIONS if row.get(c) is not None), None)
    if column is None or missing(row[column]):
        if dialogue is None:
            known = (
                f"none of {', '.join((*PROMPTS, *CONVERSATIONS))}; name its column, `columns: {{prompt: COLUMN}}`; "
                f"it has {', '.join(map(str, row))[:200]}"
            )
            raise RowError("prompt", "no prompt", known if column is None else "")
        column = dialogue
    elif dialogue is not None and "chosen" not in row.used and _repeats(row[column], row[dialogue]):
        row.use(column)
        column = dialogue
    field = column if column in CONVERSATIONS else "prompt"
    row.use(column)
    talk = _messages_of(row[column], field, row)
    last = talk.closing()
    if not talk.messages:
        raise RowError(field, "only assistant messages")
    if not any(message["role"] == "user" and message["content"] for message in talk.messages):
        raise RowError(field, "the prompt is empty", "no user message with text")
    if not isinstance(conversation.from_json(row[column]), list):
        _complete_question(talk, column, row)
    return talk, last


def _repeats(text: Any, dialogue: Any) -> bool:
    """Whether a text is the first question of a conversation that stands in another column."""
    return isinstance(text, str) and conversation.first_question(dialogue) == normalise(text)


def _complete_question(talk: conversation.Talk, column: str, row: Cells) -> None:
    """Put into a question that is one text what other columns have of it: SVAMP's body, Alpaca's input, a context, earlier turns."""
    asked = talk.messages[-1]
    body = row.get("Body")
    if isinstance(body, str):
        asked["content"] = f"{check_text(body, 'Body').rstrip(' .')}. {asked['content']}"
        row.use("Body")
    also = ("input",) if column == "instruction" else ()
    for name in (*also, *CONTEXTS):
        if missing(row.get(name)) or name == column:
            continue
        value = row[name]
        if not isinstance(value, str | bytes) and not (
            isinstance(value, list) and all(isinstance(v, str) for v in value)
        ):
            fix = "write it into the question, or name it in `remove_columns` of the source"
            raise RowError(name, "not text, and the question is about it", fix)
        text = normalise(
            "\n\n".join(map(check_text, value, [name] * len(value)))
            if isinstance(value, list)
            else text_of(value, name)
        )
        if text not in asked["content"]:
            asked["content"] = f"{asked['content']}\n\n{text}".strip()
        row.use(name)
    if earlier := conversation.history(row.get("history")):
        talk.messages[:0], talk.marks[:0] = earlier, [None] * len(earlier)
        row.use("history")


def _prompt(talk: conversation.Talk, row: Cells, source: Source, chosen_from: choices.Choices | None) -> list[Message]:
    """The conversation with its choices, the template around it and the system message before it."""
    messages = talk.messages
    asked = messages[-1]
    if chosen_from is not None:
        asked["content"] = chosen_from.question(asked["content"])
    if source.prompt_template:
        asked["content"] = _fill(source.prompt_template, asked["content"], row)
    column = None if source.system else row.column(source, "system", SYSTEMS)
    system = source.system if column is None else text_of(row[column], "system")
    has_own = messages[0]["role"] == "system"
    if system and column is not None and (not has_own or messages[0]["content"] == normalise(system)):
        row.use(column, *(each for each in SYSTEMS if row.get(each) == row[column]))
    if system and not has_own:
        messages = [{"role": "system", "content": system}, *messages]
    return [{"role": message["role"], "content": normalise(message["content"])} for message in messages]


def _choice(
    row: Cells,
    source: Source,
    chosen_from: choices.Choices,
    last: conversation.Talk,
    verifier: str | None,
    answered: bool,
) -> Gold:
    """The letter of the correct choice; its text where the verifier is one that reads no letters."""
    named = source.columns.get("answer")
    position = choices.correct(row, chosen_from, (named,) if named else choices.ANSWERS)
    solution = gold.solution(row, source, last)
    if position is None and not answered and gold.may_lack_answer(row, source, verifier, choices.ANSWERS):
        return solution
    if position is None:
        raise RowError("answer", gold.NO_ANSWER, f"nothing says which of {chosen_from.column} is correct")
    letters = verifier in (None, "choice", "exact", "regex", "overlap")
    solution.answer = choices.LETTERS[position] if letters else chosen_from.texts[position]
    solution.verifier = "choice"
    return solution


def _turn_weights(talk: conversation.Talk, known: Gold) -> list[float]:
    """What each of the assistant's messages counts, the solution last, where one of them says so. [] where none does."""
    marked = zip(talk.messages, talk.marks, strict=True)
    marks = [mark for message, mark in marked if message["role"] == "assistant"]
    marks += [None for message in known.turns if message["role"] == "assistant"] + [known.mark]
    return [1.0 if mark is None else mark for mark in marks] if any(mark is not None for mark in marks) else []


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
