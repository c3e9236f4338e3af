"""Artifacts that come from MLflow: out of an object store, whole or not at all, and on from where a download was broken off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import remote_stores

from pipelines.base.files import contents
from tasks import cleaning, environment, keys
from tasks.store import artifacts
from tasks.tracking import api, fetch, outbox
from tasks.tracking.client import client
from tasks.tracking.time_budget import TimeBudget, TrackerUnavailable

FILES = (
    "model/config.json",
    "model/weights.bin",
    "base/config.json",
    "report/card.md",
    "samples/a/one.jsonl",
    "samples/a/two.jsonl",
)
PARTS = {"settings": {"a": 1}}
KEY = keys.stage_key(PARTS)


def sent(home: Path, location: str | None) -> Path:
    """An artifact that is in MLflow, and here no longer; its own place."""
    environment.prepare()
    client().create_experiment("e", artifact_location=location)
    building = home / "runs" / "building"
    for name in FILES:
        (building / name).parent.mkdir(parents=True, exist_ok=True)
        (building / name).write_text(f"{name} has these contents")
    path = artifacts.put(building, home / "runs", "sft", KEY, {"parts": PARTS, "numbers": {}}).path
    about = {"name": "s", "params": {}, "datasets": [], "tags": {}}
    upload = {"kind": "stage", "stage": "sft", "key": KEY, "experiment": "e", "about": about, "upload_models": True}
    outbox.note(home / "runs" / ".work" / path.name, upload)
    assert outbox.flush_all(60).sent == 1
    return path


def fetched() -> tuple[artifacts.Artifact | None, str | None]:
    return fetch.from_mlflow("sft", KEY, "e", TimeBudget(60.0))


@pytest.mark.slow
@pytest.mark.long
def test_an_object_store_gives_back_the_same_files(home, monkeypatch):
    with remote_stores.s3(monkeypatch) as store:
        store.mkdir("bucket")
        path = sent(home, "s3://bucket/mlflow")
        assert any(name.endswith("weights.bin") for name in store.find("bucket/mlflow"))
        before = contents(path)
        shutil.rmtree(path)
        artifact, mismatch = fetched()
        assert mismatch is None and artifact is not None and contents(artifact.path) == before
        assert not list((home / "runs" / ".fetched").iterdir())


@pytest.mark.slow
def test_a_download_that_was_broken_off_goes_on(home, monkeypatch):
    path = sent(home, None)
    before = contents(path)
    shutil.rmtree(path)
    bring, downloads = api._bring, list[str]()

    def until(most: int):
        def body(source, place, scrap, entry=None):
            def counted(folder: str) -> str:
                if entry is not None:
                    downloads.append(place.name)
                    if len(downloads) > most:
                        raise TrackerUnavailable("the connection is gone")
                return source(folder)

            bring(counted, place, scrap, entry)

        return body

    monkeypatch.setattr(api, "DOWNLOADS", 1)
    monkeypatch.setattr(api, "_bring", until(3))
    with pytest.raises(TrackerUnavailable):
        fetched()
    assert not path.exists(), "nothing half is seen"
    (half,) = (home / "runs" / ".fetched").iterdir()
    assert half.name == path.name and len([file for file in half.rglob("*") if file.is_file()]) == 4
    assert [each.path for each in cleaning.plan(0.0, (), now=2e10).interrupted] == [half]
    damaged = next(file for file in half.rglob("*") if file.is_file() and file.name != "manifest.json")
    damaged.write_text(damaged.read_text()[::-1])
    (half / "left.txt").write_text("of another attempt")
    downloads.clear()
    monkeypatch.setattr(api, "_bring", until(100))
    artifact, mismatch = fetched()
    assert mismatch is None and artifact is not None and contents(artifact.path) == before
    assert len(downloads) == len(FILES) - 2, "two whole ones are kept, the damaged one comes again"
