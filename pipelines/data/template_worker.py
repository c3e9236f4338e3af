"""Chat templates rendered without transformers, also in a process of its own with bounds on time and memory.

`python -m pipelines.data.template_worker` reads one JSON object, the arguments of `render_all`, and writes what it returns as JSON.
A template comes with a model, so it is other people's code: what loops or prints without end must not take this process with it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

CPU_S = 5
"""Processor seconds for all conversations together; the templates of the tested families took 0.05 s."""
MEMORY_BYTES = 1 << 30
CHARACTERS = 1 << 22
"""Of one rendered conversation."""


def render_all(
    templates: Mapping[str, str], conversations: list[dict[str, Any]], variables: dict[str, Any]
) -> list[dict[str, str]]:
    """`{"text"}` of each conversation, or `{"error"}`.

    Args:
        templates: by name.
        conversations: `template` (a name) and what is passed to it: `messages`, `add_generation_prompt`, perhaps `tools`.
        variables: passed to the template with each.

    Raises:
        MemoryError: the text of one is longer than `CHARACTERS`, or takes more memory than there is.
    """
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks what the assistant says, as transformers has it."""

        tags = {"generation"}  # noqa: RUF012  as the base class has it

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    results = []
    compiled: dict[str, Any] = {}
    for arguments in conversations:
        name = arguments["template"]
        passed = {"tools": None, "documents": None, **variables, **arguments}
        del passed["template"]
        try:
            if name not in compiled:
                compiled[name] = environment.from_string(templates[name])
            text, size = [], 0
            for part in compiled[name].generate(**passed):
                size += len(part)
                if size > CHARACTERS:
                    raise MemoryError(f"it prints more than {CHARACTERS:,} characters")
                text.append(part)
            results.append({"text": "".join(text)})
        except MemoryError:
            raise
        except Exception as error:  # other people's code raises anything
            results.append({"error": f"{type(error).__name__}: {error}"[:300]})
    return results


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def main() -> None:
    """Answer the request on standard input within the bounds."""
    request = json.load(sys.stdin)
    import jinja2.sandbox  # noqa: F401  loaded before the bounds, which are the template's

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        answer: Any = render_all(**request)
    except MemoryError as error:
        answer = str(error) or f"it takes more than {MEMORY_BYTES >> 20} MiB of memory"
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
