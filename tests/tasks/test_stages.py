"""What a selection of stages reads, what of it is fetched, and what is shown of one that has no result."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks import environment, process, stages
from tasks.store.artifacts import Artifact


@pytest.fixture
def recipe(tmp_path, home):
    return read_recipe(toys.recipe(tmp_path))


@pytest.mark.parametrize(
    ("chosen", "read"),
    [
        (["curate"], set()),
        (["rlvr"], {"curate", "sft"}),
        (["evaluate"], {"curate", "sft", "rlvr"}),
        (["sft", "rlvr"], {"curate"}),
        (["rlvr", "evaluate"], {"curate", "sft"}),
    ],
)
def test_a_selection_reads_all_that_its_inputs_were_made_from(recipe, chosen, read):
    assert stages._read_by(recipe, chosen) == read


@pytest.mark.parametrize(("held", "fetched"), [(("curate", "sft"), ["curate", "sft"]), ((), ["curate"])])
def test_stages_are_fetched_in_order_until_one_is_missing(recipe, monkeypatch, held, fetched):
    asked = []

    def from_store(recipe, stage, key, patience):
        asked.append(stage)
        return Artifact(stage, key, Path(stage), f"digest of {stage}") if stage in held else None

    monkeypatch.setattr(stages, "_from_store", from_store)
    stages.fetch_inputs(recipe, ["rlvr"])
    assert asked == fetched, "without its input's digest a stage has no key"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (KeyboardInterrupt(), "stopped"),
        (process.StageFailed("killed", signal=signal.SIGTERM), "stopped"),
        (process.StageFailed("no finite gradients", kind="interrupted"), "stopped"),
        (process.StageFailed("killed", signal=signal.SIGKILL), "failed"),
        (OSError("no space left"), "failed"),
    ],
)
@pytest.mark.few(2)
def test_who_watches_is_told_how_a_stage_ended(recipe, monkeypatch, error, ending):
    """The last progress says it, after whatever the stage wrote last."""

    def run(module, work, job, tick, *_):
        work.mkdir(parents=True)
        (work / "progress.json").write_text('{"done": 4, "total": 4}')
        raise error

    monkeypatch.setattr(process, "run", run)
    environment.prepare()
    shown = []
    with pytest.raises(type(error)):
        stages.run_stage(recipe, "curate", {}, parent=None, show=lambda *given: shown.append(given))
    assert shown[-2:] == [("curate", {"done": 4, "total": 4, "ending": ending}), ("curate", None)]
