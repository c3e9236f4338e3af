"""A progress bar with rate and remaining time, on terminals only."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Shows one stage at a time; called with its progress, or None when it ends."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.task: Any = None

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Draw."""
        if body is None:
            if self.progress is not None:
                self.progress.stop()
                self.progress = self.task = None
            return
        if self.progress is None:
            self.progress = Progress(
                TextColumn("[bold]{task.fields[stage]:<9}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[what]}"),
                console=Console(stderr=True),
                transient=False,
            )
            self.progress.start()
            self.task = self.progress.add_task("", total=body["total"], stage=stage, rate="", what="")
        rate = f"{body['rate']:.2f} {body['unit']}s/s" if body.get("rate") else ""
        self.progress.update(
            self.task, completed=body["done"], total=body["total"], rate=rate, what=body.get("what", "")
        )
