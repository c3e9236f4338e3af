"""A user's Python function as a tool; its schema comes from its type hints and its docstring.

The reader of both is transformers' `get_json_schema`: a description, then an `Args:` section in Google's form.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import load_function, name_of
from pipelines.tools import Tool, ToolError, ToolTimeout


def tools(*, path: str, timeout_s: float = 10.0) -> list[Tool]:
    """The function at `FILE.py:NAME` or `package.module:NAME`.

    What it returns is shown as text, other than text as JSON. A `ValueError` of it is an observation for the policy; every other
    exception is a fault of the function and ends the run.

    Raises:
        RecipeError: it cannot be imported, or has no hints or docstring.
    """
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    function, name = load_function(path, "tools"), name_of(path)
    try:
        schema = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise RecipeError(
            "tools", f"{path} has no schema ({error})", "Give every parameter a type hint and a line under `Args:`."
        ) from error
    threads = ThreadPoolExecutor(8, thread_name_prefix=f"tool {name}")

    def call(**arguments: Any) -> str:
        try:
            value = threads.submit(function, **arguments).result(timeout_s)
        except TooLate:
            raise ToolTimeout(f"{name} took longer than {timeout_s:g} s") from None
        except ValueError as error:
            raise ToolError(str(error)) from None
        return value if isinstance(value, str) else json.dumps(value, default=str)

    return [Tool(schema, call, waits=True)]
