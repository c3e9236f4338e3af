"""`whetstone sync`: send to MLflow what earlier runs could not send."""

from __future__ import annotations

import argparse

SECONDS = 600.0
"""How long the command waits for mirrors in other trackers."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add no options: the command has none."""


def command(arguments: argparse.Namespace) -> int:
    """Empty the upload outbox and close abandoned runs: exit code 1 where uploads are still pending."""
    from tasks import environment

    environment.prepare()
    environment.check_reachable()
    from tasks.tracking import leases, mirrors, outbox

    flushed = outbox.flush_all(None)
    mirrors.take_up(again=True)
    missing = mirrors.flush(SECONDS)
    closed = leases.close_abandoned() + leases.close_unresponsive()
    if closed:
        print(f"closed {closed} run{'s' if closed > 1 else ''} whose process is gone")
    for line in flushed.refused:
        print(f"refused for good, and set aside in {outbox.folder() / 'refused'}: {line}")
    if missing:
        print(f"not mirrored: {'; '.join(missing)}")
    if flushed.pending:
        print(f"{flushed.pending} uploads are still pending; try again later")
        return 1
    print("the upload outbox is empty" + (f": {flushed.sent} sent" if flushed.sent else ""))
    return 0
