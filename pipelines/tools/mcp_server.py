"""The tools of an MCP server (the library mcp): a child process that talks over its standard input and output, or an address.

One session serves every episode of a process, so the tools should keep no state per episode. The server's own notes about its
tools are shown to the policy and steer nothing else. A session that broke is opened again by the next call.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError
from pipelines.base.secrets import authorization
from pipelines.tools import Tool, ToolError, ToolTimeout, ToolUnavailable


def tools(
    *,
    command: list[str] | None = None,
    url: str | None = None,
    api_key_env: str | None = None,
    environment: dict[str, str] | None = None,
    only: list[str] | None = None,
    timeout_s: float = 30.0,
) -> list[Tool]:
    """The server's tools, or those of them that `only` names.

    Args:
        command: the program and its arguments, for a server that is a child process.
        url: of a server that runs already and speaks streamable HTTP, such as http://127.0.0.1:8000/mcp; instead of `command`.
        api_key_env: the environment variable that holds the key of such a server; it is sent as a bearer token and stored nowhere.
        environment: variables that the program gets beside a plain environment; never a secret, because recipes are stored.
        timeout_s: of the session's start and of a call.

    Raises:
        RecipeError: the library is not installed, the settings do not fit each other, the server does not answer, or `only` names
            a tool that it lacks.
    """
    if (command is None) == (url is None):
        raise RecipeError("tools", "mcp_server needs `command` or `url`", "Set one of them.")
    if url is not None and environment:
        raise RecipeError("tools", "`environment` of mcp_server is for a program", "Leave it out beside `url`.")
    if url is None and api_key_env:
        raise RecipeError("tools", "`api_key_env` of mcp_server is for an address", "Leave it out beside `command`.")
    server = (
        _Server(command, environment, timeout_s)
        if command
        else _Server(str(url), _headers(url, api_key_env), timeout_s)
    )
    offered = {str(tool.name): tool for tool in server.listed}
    missing = set(only or ()) - offered.keys()
    if missing:
        raise RecipeError(
            "tools", f"the MCP server {server.label} has no tool {min(missing)!r}; it has {', '.join(offered)}."
        )
    names = only if only is not None else list(offered)
    return [Tool(_schema(offered[name]), _caller(server, name), waits=True) for name in names]


def _headers(url: str | None, api_key_env: str | None) -> dict[str, str]:
    if not str(url).startswith(("http://", "https://")):
        raise RecipeError("tools", f"`url` of mcp_server: {url!r} is not an address", "Write http://HOST:PORT/mcp.")
    return authorization(api_key_env, "tools", RecipeError)


class _Server:
    """A session with a server, kept until the process ends.

    Args:
        target: the command of a child process, or an address.
        extras: the program's environment, or the headers of requests.
    """

    def __init__(self, target: list[str] | str, extras: dict[str, str] | None, timeout_s: float) -> None:
        try:
            import mcp  # noqa: F401
            from anyio.from_thread import start_blocking_portal
        except ImportError:
            raise RecipeError(
                "tools", "MCP servers need the library mcp", f"Install it: {install_hint('mcp')}."
            ) from None
        self.target, self.extras, self.timeout_s = target, extras, timeout_s
        self.label = target if isinstance(target, str) else target[0]
        self._portals, self._lock = contextlib.ExitStack(), threading.Lock()
        self._opened: contextlib.ExitStack | None = None
        self.portal = self._portals.enter_context(start_blocking_portal())
        try:
            self.session = self._open()
            self.listed = self.portal.call(self.session.list_tools).tools
        except Exception as error:  # groups of whatever the server's end caused, by way of the library
            self.close()
            what = f"at {target} does not answer" if isinstance(target, str) else f"{' '.join(target)} did not start"
            raise RecipeError("tools", f"the MCP server {what} ({_cause(error)}).") from error
        atexit.register(self.close)

    def close(self) -> None:
        """End the session, and the child process."""
        self._leave()
        self._portals.close()

    def _open(self) -> Any:
        opened = contextlib.ExitStack()
        session = opened.enter_context(self.portal.wrap_async_context_manager(self._session()))
        self._opened = opened
        return session

    def _leave(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(Exception):  # what broke the session, once more
                opened.close()

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        import anyio
        from mcp import ClientSession

        async with self._transport() as streams, ClientSession(*streams) as session:
            with anyio.fail_after(self.timeout_s):
                await session.initialize()
            yield session

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if isinstance(self.target, str):
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            limits = httpx2.Timeout(
                self.timeout_s, read=None
            )  # a server may hold a stream open; calls have a limit of their own
            async with (
                httpx2.AsyncClient(headers=self.extras, timeout=limits) as client,
                streamable_http_client(self.target, http_client=client) as streams,
            ):
                yield streams
        else:
            from mcp import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(command=self.target[0], args=self.target[1:], env=self.extras)
            async with stdio_client(parameters) as streams:
                yield streams

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call's result.

        Raises:
            TimeoutError: it took too long.
            ToolUnavailable: the server is gone. The call is not made again, because it may have had its effect.
        """
        import anyio
        from mcp import MCPError

        with self._lock:
            if self._opened is None:
                try:
                    self.session = self._open()
                except Exception as error:
                    raise ToolUnavailable(f"the MCP server {self.label} is gone ({_cause(error)})") from error
            session, opened = self.session, self._opened

        async def limited() -> Any:
            with anyio.fail_after(self.timeout_s):
                return await session.call_tool(name, arguments)

        try:
            return self.portal.call(limited)
        except MCPError as error:
            if not _ends_session(error):
                raise
            with self._lock:
                if self._opened is opened:
                    self._leave()
            raise ToolUnavailable(f"the MCP server {self.label} is gone ({error})") from error


def _ends_session(error: Any) -> bool:
    """Whether it says that the connection is closed, or that a server which was started anew does not know the session."""
    from mcp_types import CONNECTION_CLOSED

    return error.code == CONNECTION_CLOSED or str(error) == "Session terminated"


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
