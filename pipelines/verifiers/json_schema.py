"""JSON that fits a schema (draft 2020-12, or the one it names). Runs in a process that can be killed: schemas have patterns.

The schema is `info["schema"]`, or the answer. The JSON is the last fenced block named json or without a name, the text in
`<answer>`, or the whole completion; it must be strict: no key twice, no NaN.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from pipelines.base.expressions import depth
from pipelines.verifiers._code import program
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

DEPTH = 100


class _NotStrict(ValueError):
    pass


def strict(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, has a key twice, a number that is none, or is nested too deeply.
    """
    if text.count("[") + text.count("{") > DEPTH and depth(text, "[{", "]}") > DEPTH:
        raise _NotStrict("nested too deeply")
    return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        raise _NotStrict("a key twice")
    return body


def _constant(name: str) -> Any:
    raise _NotStrict(name)


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    schema = json.loads(schema_text)
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())  # an address in a schema is not fetched


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Whether the completion's JSON fits the schema.

    Raises:
        ValueError: the schema is no JSON.
        jsonschema.SchemaError: it is no schema.
    """
    schema = info.get("schema") or answer
    validator = _validator(schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True))
    try:
        value = strict(program(completion, ("json",)).strip())
    except (ValueError, RecursionError):
        return UNPARSABLE
    return correct_or_incorrect(validator.is_valid(value))


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """True: only a form is asked for."""
    return True


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """A text that must be correct: the row's `example`, or the answer where the schema is in `info`."""
    return info.get("example") or (answer if info.get("schema") else None)


def warm(detail: str) -> None:
    """Import the library."""
    verify("1", "", {"schema": {"type": "integer"}})
