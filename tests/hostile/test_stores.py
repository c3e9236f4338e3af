"""Corrupted stores: whatever lies where a file of ours should be, the next start goes on or says in one line what to move."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import databases
import pytest
import toys

from pipelines.base.errors import UserError
from pipelines.base.files import read_json
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report, visible_lines
from tasks import environment, keys, planning, process, stages
from tasks.environment import folder as store
from tasks.pipeline import Pipeline
from tasks.store import artifacts, index
from tasks.tracking import leases, outbox

pytestmark = [pytest.mark.hostile, pytest.mark.slow]
WORK, OUTBOX = "runs/.work/sft-0123456789abcdef", "runs/.outbox/curate-{key}-1"
Corrupt = Callable[[Path], None]


def text(body: str) -> Corrupt:
    return lambda path: path.write_text(body)


def raw(body: bytes) -> Corrupt:
    return lambda path: path.write_bytes(body)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def as_folder(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def as_file(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("in the way")


def dangling(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")


def edit(**changes) -> Corrupt:
    return lambda path: path.write_text(json.dumps((read_json(path) or {}) | changes))


JSON = {
    "empty": text(""), "null": text("null"), "list": text("[]"), "number": text("3"), "string": text('"x"'),
    "binary": raw(bytes(range(256))), "half": half, "nested": text("[" * 100_000), "digits": text("1" * 5000),
    "shapes": text('{"run_id": 3, "sent": [], "opened": "x", "stage": [], "key": {}, "parent": 1, "pid": "x", "since": "y", "done": []}'),
    "not utf-8": raw(b'{"a": "\xff"}'),
}  # fmt: skip
STATE_FILES = [
    f"{WORK}/progress.json", f"{WORK}/sent.json", f"{WORK}/seconds.json", f"{WORK}/upload.json", f"{WORK}/error.json",
    "runs/.last/toy-curate.json", "runs/.locks/curate-{key}", "runs/.uploaded/curate-{key}.json", "runs/.models/curate-{key}.json",
    "pipelines/{state}.json", "pipelines/open/{run}.json", f"{OUTBOX}/upload.json", f"{OUTBOX}/sent.json",
    "runs/curate-{key}/manifest.json",
]  # fmt: skip
TABLE: list[tuple[str, str, Corrupt, str | None]] = [
    (f"{path.rsplit('/', 2)[-2][:8]}/{Path(path).name} {name}", path, how, None)
    for path in STATE_FILES
    for name, how in JSON.items()
]
TABLE += [
    ("spool half a line", f"{WORK}/spool.jsonl", raw(b'{"kind": "met'), None),
    ("spool zeros", f"{WORK}/spool.jsonl", raw(b"\0" * 5000), None),
    ("spool foreign lines", f"{WORK}/spool.jsonl", raw(b"[]\n3\nnull\n\xff\xfe\n{}\n"), None),
    ("spool a folder", f"{OUTBOX}/spool.jsonl", as_folder, None),
    ("spool of the outbox half a line", f"{OUTBOX}/spool.jsonl", half, None),
    ("spool of the outbox binary", f"{OUTBOX}/spool.jsonl", raw(bytes(range(256)) * 9), None),
    ("visible words", f"{WORK}/spool.visible", text("all of it"), None),
    ("visible negative", f"{WORK}/spool.visible", text("-5"), None),
    ("visible binary", f"{WORK}/spool.visible", raw(b"\xff\xfe"), None),
    ("visible past the end", f"{OUTBOX}/spool.visible", text("9" * 30), None),
    ("bookmark past the end", f"{OUTBOX}/sent.json", text('{"sent": {"spool.jsonl": 123456789}}'), None),
    ("bookmark inside a line", f"{OUTBOX}/sent.json", text('{"sent": {"spool.jsonl": 3}}'), None),
    ("bookmark of a run that is gone", f"{OUTBOX}/sent.json", text('{"run_id": "' + "0" * 32 + '", "opened": true}'), None),
    ("manifest out of the folder", "runs/curate-{key}/manifest.json", edit(files={"../x": {"sha256": "0", "bytes": 1}}), None),
    ("manifest of another stage", "runs/curate-{key}/manifest.json", edit(stage="sft"), None),
    ("manifest of another key", "runs/curate-{key}/manifest.json", edit(key="f" * 16), None),
    ("manifest with another digest", "runs/curate-{key}/manifest.json", edit(digest="0" * 64), None),
    ("artifact a file", "runs/curate-{key}", as_file, None),
    ("artifact a dangling link", "runs/sft-0000000000000000", dangling, None),
    ("artifact empty", "runs/curate-{key}", as_folder, None),
    ("artifact's data gone", "runs/curate-{key}/train.jsonl", lambda p: p.unlink(), None),
    ("artifact's data a folder", "runs/curate-{key}/train.jsonl", as_folder, None),
    ("a stranger in runs", "runs/notes.txt", text("hello"), None),
    ("a stranger like an artifact", "runs/sft-1111111111111111", as_file, None),
    ("work a file", "runs/.work/rlvr-2222222222222222", text("x"), None),
    ("outbox entry a file", "runs/.outbox/stray", text("x"), None),
    ("outbox entry without upload.json", f"{OUTBOX}/upload.json", lambda p: p.unlink(), None),
    ("outbox entry of unknown kind", f"{OUTBOX}/upload.json", edit(kind="telegram"), None),
    ("outbox entry whose artifact is gone", f"{OUTBOX}/upload.json", edit(key="e" * 16), None),
    ("index half a line", "index.jsonl", half, None),
    ("index binary", "index.jsonl", raw(bytes(range(256))), None),
    ("index foreign", "index.jsonl", text('3\n[]\n{"run_id": 3}\n{"run_id": "x", "started": "y"}\n'), None),
    ("index a folder", "index.jsonl", as_folder, "index.jsonl"),
    ("index gone", "index.jsonl", lambda p: p.unlink(), None),
    ("mlflow.db words", "mlflow.db", text("this is not a database, but it is long enough to look like a file"), "mlflow.db"),
    ("mlflow.db half", "mlflow.db", half, "mlflow.db"),
    ("mlflow.db binary", "mlflow.db", raw(os.urandom(40_000)), "mlflow.db"),
    ("mlflow.db header kept, rest zeros", "mlflow.db", lambda p: p.write_bytes(p.read_bytes()[:100] + b"\0" * 50_000), "mlflow.db"),
    ("mlflow.db another program's", "mlflow.db", lambda p: (p.unlink(), sqlite3.connect(p).execute("create table a (b)")), "mlflow.db"),
    ("mlflow.db empty", "mlflow.db", text(""), None),
    ("mlflow.db gone", "mlflow.db", lambda p: p.unlink(), None),
    ("mlflow.db a folder", "mlflow.db", as_folder, "mlflow.db"),
    ("prefect.db words", "prefect/prefect.db", text("x" * 5000), "prefect.db"),
    ("prefect.db binary", "prefect/prefect.db", raw(os.urandom(9000)), "prefect.db"),
    ("prefect.db empty", "prefect/prefect.db", text(""), None),
    ("prefect a file", "prefect", as_file, "prefect"),
    ("runs a file", "runs", as_file, "runs"),
    ("pipelines a file", "pipelines", as_file, "pipelines"),
    ("home a file", ".", as_file, "home"),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with a little of everything, and the recipe that it belongs to."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("WHETSTONE_HOME", str(folder / "home"))
        home, recipe = folder / "home", read_recipe(toys.recipe(folder), ["tracking.timeout_s=5"])
        databases.store()
        pipeline = Pipeline.open(recipe)
        parts = keys.key_parts(recipe, "curate", {})
        key = keys.stage_key(parts)
        building = home / "runs" / "building"
        building.mkdir(parents=True)
        (building / "train.jsonl").write_text("{}\n")
        artifacts.put(
            building,
            home / "runs",
            "curate",
            key,
            {"parts": parts, "numbers": {"rows": 1.0}, "pipeline_run": pipeline.parent},
        )
        names = {"key": key, "run": pipeline.parent, "state": Pipeline.state_of(recipe).stem}
        for work in (home / WORK, home / OUTBOX.format(**names)):
            report = Report(work)
            for step in range(5):
                report.metrics(step, {"loss": 1.0})
            report.progress(1, 2, force=True)
            report.close()
            (work / "seconds.json").write_text("3.5")
            (work / "error.json").write_text('{"message": "x"}')
            (work / "sent.json").write_text('{"sent": {"spool.jsonl": 0}}')
            outbox.note(
                work,
                {"kind": "stage", "stage": "curate", "key": key, "experiment": "toy", "about": {"name": "curate-toy"}},
            )
        planning.remember(recipe, "curate", parts)
        with process.lock(home / "runs/.locks" / f"curate-{key}", "run"):
            pass
        for kind in (".uploaded", ".models"):
            (home / "runs" / kind).mkdir()
            (home / "runs" / kind / f"curate-{key}.json").write_text('{"run_id": "r", "models": {"sft": "m"}}')
        (home / "prefect").mkdir()
        connection = sqlite3.connect(home / "prefect/prefect.db")
        connection.execute("create table flow_run (id text)")
        connection.commit()
        connection.close()
        (home / "pipelines" / f"{names['state']}.json").write_text(
            json.dumps({"parent": pipeline.parent, "finished": True})
        )
        pipeline.claim.leave("KILLED", told=False)
    return home, recipe, names


def start_over(home: Path, recipe) -> None:
    """All that a start reads of a store, in its order."""
    environment.prepare()
    environment.check_reachable()
    planned = stages.plan(recipe)
    artifacts.all_of(environment.runs_folder())
    index.runs()
    for lock in environment.runs_folder().glob(".locks/*"):
        process.holder(lock)
    for work in environment.runs_folder().glob(".work/sft-*"):
        stages._seconds_so_far(work)
        process.read_error(work)
        Report(work).close()
        list(visible_lines(work, 0))
    flushed = outbox.flush_all(20.0)
    Pipeline.unchanged(recipe).close("FAILED")
    leases.close_abandoned()
    for p in planned:
        if p.artifact is not None:
            outbox.uploaded(p.artifact.path)
    assert all("Traceback" not in line for line in flushed.refused)


@pytest.mark.few(50)
@pytest.mark.parametrize(("path", "corrupt", "names"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_corrupted_store(whole, tmp_path, monkeypatch, path, corrupt, names):
    source, recipe, parts = whole
    home = tmp_path / "home"
    shutil.copytree(source, home)
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WHETSTONE_HOME", str(home))
    for claim in home.glob("pipelines/open/*.json"):  # the claim names its store
        claim.write_text(claim.read_text().replace(str(source), str(home)))
    target = home if path == "." else home / path.format(**parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    corrupt(target)
    if names is None:
        start_over(home, recipe)
        return
    with pytest.raises(UserError) as caught:
        start_over(home, recipe)
    said = str(caught.value)
    assert names in said and ("ove it aside" in said or "in the way" in said), said
    assert "\n" not in said


def test_enough_was_tried():
    assert len(TABLE) >= 60 and len({row[0] for row in TABLE}) == len(TABLE)


def test_a_store_that_cannot_be_written_is_named(whole, tmp_path):
    """As another user: root may write anything."""
    import subprocess
    import sys

    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    home = tmp_path / "home"
    shutil.copytree(whole[0], home)
    os.chmod(tmp_path, 0o755)
    code = (
        "import os, sys; from pathlib import Path; from tasks.environment import folder as store\n"
        "from pipelines.base.errors import UserError; os.setuid(65534)\n"
        "try:\n    store.prepare(Path(sys.argv[1])); store.check(Path(sys.argv[1]))\n"
        "except UserError as error:\n    print('SAID', error)"
    )
    os.chmod(home, 0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)], capture_output=True, text=True, env=toys.environment(), cwd=toys.ROOT
    )
    assert "SAID" in done.stdout and "cannot be written" in done.stdout and "WHETSTONE_HOME" in done.stdout, done.stderr


def test_a_loose_store_is_tightened(whole, tmp_path, caplog):
    home = tmp_path / "home"
    shutil.copytree(whole[0], home)
    home.chmod(0o755)
    store.prepare(home)
    assert home.stat().st_mode & 0o777 == 0o700 and "private" in caplog.text
    other = tmp_path / "shared"
    other.mkdir(mode=0o755)
    (other / "somebody.txt").write_text("x")
    store.prepare(other)
    assert other.stat().st_mode & 0o777 == 0o755, "a folder that is not a store of ours is left alone"
