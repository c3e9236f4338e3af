"""The tools of an MCP server that runs as a child process and talks over its standard input and output (the library mcp).

One server serves every episode of a process, so its tools should keep no state per episode. The server's own notes about its
tools are shown to the policy and steer nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError
from pipelines.tools import Tool, ToolError, ToolTimeout


def tools(
    *,
    command: list[str],
    environment: dict[str, str] | None = None,
    only: list[str] | None = None,
    timeout_s: float = 30.0,
) -> list[Tool]:
    """The server's tools, or those of them that `only` names.

    Args:
        command: the program and its arguments.
        environment: variables that it gets beside a plain environment; never a secret, because recipes are stored.
        timeout_s: of its start and of a call.

    Raises:
        RecipeError: the library is not installed, the server does not start, or `only` names a tool that it lacks.
    """
    server = _Server(command, environment, timeout_s)
    offered = {str(tool.name): tool for tool in server.listed}
    missing = set(only or ()) - offered.keys()
    if missing:
        raise RecipeError(
            "tools", f"the MCP server {command[0]} has no tool {min(missing)!r}; it has {', '.join(offered)}."
        )
    names = only if only is not None else list(offered)
    return [Tool(_schema(offered[name]), _caller(server, name), waits=True) for name in names]


class _Server:
    """A session with a server, kept until the process ends."""

    def __init__(self, command: list[str], environment: dict[str, str] | None, timeout_s: float) -> None:
        try:
            import mcp  # noqa: F401
            from anyio.from_thread import start_blocking_portal
        except ImportError:
            raise RecipeError(
                "tools", "MCP servers need the library mcp", f"Install it: {install_hint('mcp')}."
            ) from None
        self.command, self.environment, self.timeout_s = command, environment, timeout_s
        stack = contextlib.ExitStack()
        try:
            self.portal = stack.enter_context(start_blocking_portal())
            self.session = stack.enter_context(self.portal.wrap_async_context_manager(self._session()))
            self.listed = self.portal.call(self.session.list_tools).tools
        except Exception as error:  # groups of whatever the child's end caused, by way of the library
            stack.close()
            raise RecipeError(
                "tools", f"the MCP server {' '.join(command)} did not start ({_cause(error)})."
            ) from error
        atexit.register(stack.close)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        import anyio
        from mcp import ClientSession, StdioServerParameters, stdio_client

        parameters = StdioServerParameters(command=self.command[0], args=self.command[1:], env=self.environment)
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            with anyio.fail_after(self.timeout_s):
                await session.initialize()
            yield session

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call's result.

        Raises:
            TimeoutError: it took too long.
        """
        import anyio

        async def limited() -> Any:
            with anyio.fail_after(self.timeout_s):
                return await self.session.call_tool(name, arguments)

        return self.portal.call(limited)


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:200]}"


def _caller(server: _Server, name: str) -> Any:
    from mcp import MCPError

    def call(**arguments: Any) -> str:
        try:
            result = server.call(name, arguments)
        except TimeoutError:
            raise ToolTimeout(f"{name} took longer than {server.timeout_s:g} s") from None
        except MCPError as error:
            raise ToolError(str(error)) from None
        text = "\n".join(part.text for part in result.content if getattr(part, "type", "") == "text")
        if getattr(result, "is_error", False):
            raise ToolError(text or "the tool failed")
        return text

    return call


def _schema(tool: Any) -> dict[str, Any]:
    parameters = dict(tool.input_schema)
    return {
        "type": "function",
        "function": {"name": str(tool.name), "description": str(tool.description or ""), "parameters": parameters},
    }
