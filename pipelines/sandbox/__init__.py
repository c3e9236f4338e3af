"""A sandbox for code that a model wrote: every program in a process of its own that can reach nothing.

`inside/` is what runs in the sandbox; `worker.py` drives it from outside; `levels.py` says which isolation this machine has. What a
program may do is the same on every level: compute, read the standard library, use threads. No files, no network, no
other process. So a verdict does not depend on the level, which is recorded all the same.

`interface.py` is all that others use of a sandbox: a process of this machine, or one of another machine (`remote.py`, `server.py`).
"""

from __future__ import annotations

from pipelines.base.errors import UserError


class SandboxError(UserError):
    """No sandbox can be had here; the message says why, and what helps."""
