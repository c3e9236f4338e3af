"""What the pool and its workers write to each other."""

from __future__ import annotations

import struct

HEADER = struct.Struct("!I")
"""Length in bytes of the pickled message that follows: a list of (kind, verifier, completion, answer, pickled info)."""
PROGRESS = struct.Struct("=qdd")
"""What the worker writes to the memory that it shares with its owner before each row: how many rows of the message it has begun, and
its processor time and the monotonic clock at that moment, in seconds."""
