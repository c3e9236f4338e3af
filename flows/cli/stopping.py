"""The end of a command: in one clear line within seconds where a signal asks for it, and without a long teardown otherwise."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from typing import Any

GRACE_S = 10.0
"""What a stop may take: ending the stage takes milliseconds, telling MLflow and Prefect seconds if they answer."""
SWALLOWED_S = 3.0
"""After this the exception that a signal raised may have been swallowed by a library's `except BaseException`."""
LEFT_S = 0.1
"""What the main thread has to leave a finalizer in before the signal is sent again."""
AGAIN_S = 1.0
"""Terminals and `timeout` send signals twice; only one that comes later than this is impatience."""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FINALIZER = 0
"""In the place of a signal's number: a finalizer has swallowed the exception that the signal raised."""


class Stopped(KeyboardInterrupt):
    """Raised in the main thread by the first signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


exit_code: int | None = None
"""Of a command that has come to its end; None while it runs, or where nobody caught what ended it."""
_since: float | None = None
_heard: int | None = None


def skip_teardown() -> None:
    """End the process after all that was registered to be done at its end, but before thousands of modules are taken down.

    To be called before libraries are imported, because what is registered first is called last.
    """
    atexit.register(_leave_quickly)


def _leave_quickly() -> None:
    if exit_code is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def install() -> None:
    """Let the signals raise `Stopped`, and a thread see to it that the process ends. One that is ignored, as under nohup, stays so.

    The thread hears of a signal whoever handles it: in a flow, Prefect's own handler takes the place of ours.
    """
    listen, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def unraisable(ignored: sys.UnraisableHookArgs) -> None:
        if _stops(ignored.exc_value):
            os.write(tell, bytes([FINALIZER]))  # the signal is sent once more outside, where its exception is heard
        else:
            sys.__unraisablehook__(ignored)

    sys.unraisablehook = unraisable
    os.register_at_fork(after_in_child=_let_go)
    for signum in SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _handle)
    threading.Thread(target=_make_sure, args=[listen], name="stopping", daemon=True).start()


def _let_go() -> None:
    """A forked child's signals are its own."""
    signal.set_wakeup_fd(-1)
    sys.unraisablehook = sys.__unraisablehook__


def _stops(error: BaseException | None) -> bool:
    """Whether a signal has raised this, by our handler or by Prefect's."""
    exceptions = sys.modules.get("prefect.exceptions")
    return isinstance(error, (Stopped, exceptions.TerminationSignal) if exceptions else Stopped)


def _make_sure(listen: int) -> None:
    """After the first signal: send it again where a finalizer swallowed it, end what waits for a stage, and then the process."""
    global _heard, _since
    while (signum := os.read(listen, 1)[0]) not in SIGNALS:
        pass
    _heard, until = signum, time.monotonic() + SWALLOWED_S
    while (left := until - time.monotonic()) > 0:
        if select.select([listen], [], [], left)[0] and os.read(listen, 1)[0] == FINALIZER:
            time.sleep(LEFT_S)
            _since = None
            os.kill(os.getpid(), signum)
    if (process := sys.modules.get("tasks.process")) is not None:
        process.stop_all.set()
    time.sleep(GRACE_S - SWALLOWED_S)
    leave(signum, f"gave up telling MLflow and Prefect after {GRACE_S:.0f} s")


def signal_of(stop: KeyboardInterrupt) -> int:
    """The signal that a command ends by, also where a stage that it waited for has told it of the end (`tasks.process.stop_all`)."""
    return getattr(stop, "signum", _heard or signal.SIGINT)


def _handle(signum: int, frame: Any) -> None:
    global _since
    if _since is None:
        _since = time.monotonic()
        raise Stopped(signum)
    if time.monotonic() - _since > AGAIN_S:
        leave(signum, "at once")


def leave(signum: int, how: str = "") -> None:
    """Say so and end this process with 128 + signal, without the teardown of libraries; children end with it."""
    name = signal.Signals(signum).name
    text = f"whetstone: stopped by {name}{f' ({how})' if how else ''}. The same command continues from the last commit."
    try:
        print(text, file=sys.stderr, flush=True)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)
