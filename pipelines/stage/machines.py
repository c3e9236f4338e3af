"""What the entry point of a Ray job and the pipeline that watches the job say to each other."""

from __future__ import annotations

STATE = "ray.state.json"
"""In the stage's work folder: `phase` (waiting or running) and `words`."""
LOST, TIMED_OUT = 91, 92
"""Exit codes of the entry point: a machine is gone, the time limit was reached."""
