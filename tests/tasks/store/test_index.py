"""The index of runs: the later line adds to the earlier, a lost file comes back from the manifests, MLflow is not imported."""

from __future__ import annotations

import subprocess
import sys

import homes
import toys

from tasks.store import artifacts, index
from tasks.store.known import Known


def summary(run):
    return {
        "recipe": "r",
        "seed": 0,
        "parent_run_id": run,
        "seconds": 2.0,
        "stages": {},
        "evaluation": {},
        "differences": {},
    }


def test_start_and_end_are_one_run(home):
    home.mkdir()
    index.start("a" * 32, "r", "e", {"k": "v"})
    assert [(r["status"], r["name"]) for r in index.runs()] == [("RUNNING", "r")]
    index.end("a" * 32, "FINISHED", summary("a" * 32), {"m": 1.0})
    index.start("b" * 32, "s", "f", {})
    (run,) = index.runs("e")
    assert (run["status"], run["seconds"], run["metrics"], run["tags"]) == ("FINISHED", 2.0, {"m": 1.0}, {"k": "v"})
    assert [r["name"] for r in index.runs()] == ["s", "r"], "newest first"
    assert [r["name"] for r in index.meant("aa", index.runs())] == ["r"]
    assert [r["name"] for r in index.meant("f", index.runs())] == ["s"], "the one run of that experiment"
    assert index.meant("c", index.runs()) == []


def test_an_index_made_again_knows_the_kinds_of_stages_and_what_came_later_is_not_in_it(home):
    made = homes.run("a" * 32, {"base": {"sums": [[0.0]]}, "rlvr": {"sums": [[1.0]]}})
    index.path().unlink()
    (run,) = index.runs()
    assert {stage: about["kind"] for stage, about in run["summary"]["stages"].items()} == {s: s for s in made}
    assert Known().evaluation_of(run) == "evaluate"
    index.path().unlink()
    elsewhere = [artifact.path.rename(home / artifact.name) for artifact in made.values()]
    index.begin()
    for path in elsewhere:
        path.rename(home / "runs" / path.name)
    index.begin()
    assert index.runs() == [], "fetched artifacts make no run of this folder"


def test_a_run_whose_process_is_gone_is_not_running(home):
    home.mkdir()
    code = "from tasks.store import index; index.start('c' * 32, 'r', 'e', {})"
    subprocess.run([sys.executable, "-c", code], check=True, env=toys.environment(WHETSTONE_HOME=str(home)))
    assert index.runs()[0]["status"] == "KILLED"


def test_half_a_line_does_not_swallow_the_next(home):
    home.mkdir()
    index.start("a" * 32, "r", "e", {})
    with open(index.path(), "ab") as handle:
        handle.write(b'{"run_id": "x", "sta')
    index.start("b" * 32, "s", "e", {})
    assert [r["name"] for r in index.runs()] == ["s", "r"]


def test_a_lost_index_comes_back_from_the_manifests(home):
    for stage, seconds in (("curate", 1.0), ("sft", 2.0)):
        building = home / "runs" / "building"
        building.mkdir(parents=True)
        (building / "a.json").write_text("{}")
        about = {"parts": {"seed": 3}, "recipe": "r", "seconds": seconds, "run_id": "s", "pipeline_run": "d" * 32}
        artifacts.put(building, home / "runs", stage, "0" * 16, about)
    (run,) = index.runs()
    assert (run["run_id"], run["name"], run["seconds"], run["status"]) == ("d" * 32, "r", 3.0, "FINISHED")
    assert set(run["summary"]["stages"]) == {"curate", "sft"} and run["summary"]["seed"] == 3
    assert index.path().exists()


def test_listing_imports_neither_mlflow_nor_torch(home):
    code = """
import sys
from flows.cli import main as cli
try:
    cli.main(["runs"])
except SystemExit:
    print(sorted({"mlflow", "torch", "prefect", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=toys.environment(WHETSTONE_HOME=str(home)),
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
