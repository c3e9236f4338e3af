"""`python -m pipelines.preference WORK`."""

from __future__ import annotations

from pipelines.engine import loop
from pipelines.preference.run import Trainer
from pipelines.preference.settings import Preference
from pipelines.stage import process

work = loop.work("preference", Preference, Trainer)

if __name__ == "__main__":
    process.main(work)
