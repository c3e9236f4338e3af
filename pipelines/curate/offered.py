"""What a row lets the policy use: tools by their schemas, and the corpus that they search."""

from __future__ import annotations

from typing import Any

from pipelines import tools
from pipelines.base.errors import UserError
from pipelines.curate.cells import Cells, missing
from pipelines.curate.values import RowError, kind, parse_json, plain
from pipelines.recipe.settings import Source
from pipelines.recipe.source import OF_ROWS

MEANT = ("default", "const")
"""Keys of a schema that may hold a null."""


def add_corpus(source: Source, verifier: str, info: dict[str, Any]) -> None:
    """Give a file's row the corpus that its source names. It may not name another, whose content would be in no stage's key.

    Raises:
        RowError: it searches, and the source has no corpus, or the row has another.
    """
    if source.kind not in OF_ROWS:
        return
    searching = [info] if verifier == "retrieval" else []
    box = info.get("toolbox")
    if isinstance(box, list):
        box = info["toolbox"] = [{"kind": "search"} if spec == "search" else spec for spec in box]
        searching += [spec for spec in box if isinstance(spec, dict) and spec.get("kind") == "search"]
    for spec in searching:
        if source.corpus is None or spec.setdefault("corpus", source.corpus) != source.corpus:
            raise RowError("info.corpus", "rows of files name no corpus: give it as `corpus` of the source")


def add_tools(row: Cells, source: Source, info: dict[str, Any]) -> None:
    """Put the schemas of the row's tools into its info: those of its `toolbox`, or what TRL's column `tools` holds.

    Raises:
        RowError: no such tools, or a row of a file that names code to be run.
    """
    if not info.get("toolbox"):
        if not missing(info.get("tools")):
            info["tools"] = schemas(info["tools"])
        elif not missing(row.get("tools")):
            info["tools"] = schemas(row["tools"])
            row.use("tools")
        return
    specs = info["toolbox"]
    if not isinstance(specs, list) or not all(isinstance(spec, str | dict) for spec in specs):
        raise RowError("info.toolbox", "not a list of tools")
    kinds = [spec if isinstance(spec, str) else spec.get("kind") for spec in specs]
    unsafe = [name for name in kinds if name in tools.RUNS_CODE]
    if unsafe and source.kind in OF_ROWS:
        raise RowError("info.toolbox", "rows of files may not name tools that run code", f"{unsafe[0]}")
    if "tools" not in info:
        try:
            info["tools"] = tools.toolbox(specs).schemas
        except UserError as error:
            raise RowError("info.toolbox", "no such tools", str(error)[:200]) from error


def schemas(value: Any) -> list[dict[str, Any]]:
    """Schemas of tools as chat templates take them, out of OpenAI's form, of bare functions, or of JSON of either.

    Raises:
        RowError: one is none.
    """
    value = parse_json(value, "tools") if isinstance(value, str) else value
    if not isinstance(value, list):
        raise RowError("tools", "not a list of schemas", f"it is {kind(value)}")
    read = [_schema(parse_json(tool, "tools") if isinstance(tool, str) else tool) for tool in value]
    return [_without_nulls(tool) if _filled(tool) else tool for tool in read]


def _schema(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise RowError("tools", "not a list of schemas", f"it holds {kind(tool)}")
    tool = plain(tool, "tools")
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("tools", "a tool without a name")
    parameters = function.get("parameters")
    is_schema = isinstance(parameters, dict) and (
        isinstance(parameters.get("type"), str) or isinstance(parameters.get("properties"), dict)
    )
    if parameters and not is_schema:
        function = {**function, "parameters": {"type": "object", "properties": parameters}}  # as xLAM writes them
    return {**tool, "function": function} if "function" in tool else {"type": "function", "function": function}


def _filled(value: Any) -> bool:
    """Whether a schema has nulls that it cannot mean, as Arrow puts them where other rows have a key."""
    if isinstance(value, list):
        return any(map(_filled, value))
    if not isinstance(value, dict):
        return False
    return any(entry is None and key not in MEANT for key, entry in value.items()) or any(map(_filled, value.values()))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}


def signature(tool: dict[str, Any]) -> str:
    """A tool's name with the names of what it takes.

    >>> signature({"type": "function", "function": {"name": "now"}})
    'now()'
    """
    function = tool["function"]
    return f"{function['name']}({', '.join((function.get('parameters') or {}).get('properties') or ())})"


def without_filled(name: str, arguments: dict[str, Any], row: Cells) -> dict[str, Any]:
    """The arguments of a call without nulls for what its function does not take: Arrow fills in what other functions do.

    Args:
        row: whose column `tools` says what the function takes; where it does not say, all arguments stay.
    """
    if None not in arguments.values() or missing(row.get("tools")):
        return arguments
    for tool in schemas(row["tools"]):
        if tool["function"]["name"] == name:
            takes = (tool["function"].get("parameters") or {}).get("properties") or {}
            return {key: value for key, value in arguments.items() if value is not None or key in takes}
    return arguments
