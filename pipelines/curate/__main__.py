"""`python -m pipelines.curate WORK`."""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.curate.run import run
from pipelines.recipe.settings import Curate
from pipelines.stage import process
from pipelines.stage.report import Report


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """The job's curate section, with the benchmark questions handed in by the layer above."""
    ranks = None
    if job.get("processes", 1) > 1:
        from pipelines.engine.ranks import Ranks  # imports torch, which curation does without

        ranks = Ranks.join()
        if not ranks.first:
            ranks.serve()
            return {}
    told = job.get("benchmark_texts") or []
    asked = [partial(process.resolve(each["function"]), each["settings"]) for each in told]
    texts = (lambda: chain.from_iterable(ask() for ask in asked)) if asked else None
    report = Report(folder)
    if "remote" in job:
        from pipelines.data import remote  # most recipes have files of their own

        for url, files in job["remote"].items():
            remote.pin(url, files)
    curate = Curate.model_validate(job["settings"]["curate"])
    with contextlib.ExitStack() as stack:
        workers = None
        if curate.dask is not None:
            from pipelines.curate.workers import Workers  # most stages have none

            workers = stack.enter_context(Workers(curate.dask, job, folder))
        metrics = run(
            curate,
            Model.model_validate(job["settings"]["model"]),
            out=folder / "out",
            report=report,
            seed=job["seed"],
            benchmark_texts=texts,
            solver=Path(job["inputs"][job["solver"]]) / "model" if "solver" in job else None,
            samples={
                number: Path(job["inputs"][label]) for number, label in enumerate(job.get("samples") or []) if label
            },
            ranks=ranks,
            workers=workers,
        )
    if ranks is not None:
        ranks.end()
    report.close()
    return metrics


if __name__ == "__main__":
    process.main(work)
