"""When the context of an episode is compacted; `pipelines/contract/compaction.py` does it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipelines.contract.fields import Settings

Text = Annotated[str, Field(min_length=1, max_length=100_000)]


class Compact(Settings):
    """When the context of an episode is compacted, and how the policy is asked for it."""

    at_tokens: Annotated[int, Field(ge=2)]
    """Tokens of the conversation, its prompt included, from which on the policy writes a summary before its next turn."""
    max_tokens: Annotated[int, Field(ge=1)]
    """Of a summary."""
    at_most: Annotated[int, Field(ge=1)] | None = None
    """Summaries of an episode; one whose context would need another ends there. None for no limit but that of its turns."""
    prompt: Text = "Your context is full. Summarise the task's progress so far: only this summary will be kept."
    """What the policy is asked, in the message that shows it what the environment answered last."""
    resume: Text = "Your summary of the progress so far:"
    """What stands between the episode's prompt and the summary where the episode goes on."""
