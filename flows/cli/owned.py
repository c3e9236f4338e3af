"""The command line in a process that ends with the one that started it, as after Ctrl+C: `python -m flows.cli.owned COMMAND`."""

from __future__ import annotations

import os
import signal

from flows.cli.main import main
from pipelines.base import owner


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    owner.bind(int(os.environ.pop(owner.PARENT)), signal.SIGTERM, _stop)
    main()
