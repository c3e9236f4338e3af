"""Branches side by side: nothing starts before what it reads, no more at once than the recipe says, and a failure ends it."""

from __future__ import annotations

import concurrent.futures as threads
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from flows import post_training
from pipelines.recipe.read import read_recipe
from tasks.stages import StageResult

SOURCES = [{"kind": "reasoning_gym", "task": "palindrome_generation", "size": 20}]
STAGES = {
    "data": {"kind": "curate", "sources": SOURCES}, "cold": {"kind": "sft", "data": "data", "steps": 1},
    "a": {"kind": "rlvr", "data": "data", "model": "cold"}, "b": {"kind": "rlvr", "data": "data", "model": "cold", "seed": 1},
    "c": {"kind": "rlvr", "data": "data", "model": "a"}, "scores": {"kind": "evaluate", "tasks": ["palindromes"]},
}  # fmt: skip


class Future:
    """A thread's future with what is asked of Prefect's."""

    def __init__(self, inner):
        self.inner = inner

    @property
    def state(self):
        return SimpleNamespace(is_final=self.inner.done)

    def result(self):
        return self.inner.result()


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(at_once, fails=None):
        path = tmp_path / "r.yaml"
        body = {
            "name": "r",
            "concurrent_stages": at_once,
            "model": {"fresh": {"architecture": "llama"}},
            "stages": STAGES,
        }
        path.write_text(yaml.safe_dump(body, sort_keys=False))
        recipe = read_recipe(path)
        pool, guard, log = threads.ThreadPoolExecutor(8), threading.Lock(), SimpleNamespace(now=0, most=0, seen=[])

        def work(stage, recipe, done, *rest):
            with guard:
                assert set(recipe.node(stage).inputs.values()) <= set(done), stage
                log.now, log.seen = log.now + 1, [*log.seen, stage]
                log.most = max(log.most, log.now)
            time.sleep(0.2)
            with guard:
                log.now -= 1
            if stage == fails:
                raise RuntimeError(stage)
            return StageResult(stage, "ran", SimpleNamespace(path=Path(stage)), "", 0.0)

        task = SimpleNamespace(submit=lambda *arguments: Future(pool.submit(work, *arguments)))
        monkeypatch.setattr(post_training, "_task", lambda recipe, stage: task)
        monkeypatch.setattr(post_training, "as_completed", lambda futures: iter(
            [f for f in futures if f.inner in threads.wait([x.inner for x in futures], return_when="FIRST_COMPLETED").done]))  # fmt: skip
        monkeypatch.setattr(post_training, "wait", lambda futures: threads.wait([f.inner for f in futures]))
        pipeline = SimpleNamespace(results={}, parent=None, name="toy", recipe=recipe)
        try:
            post_training._side_by_side(recipe, recipe.stage_names(), pipeline, {}, False, lambda *_: None)
        except RuntimeError as error:
            log.error = str(error)
        assert log.now == 0, "a stage still runs"
        log.results = list(pipeline.results)
        pool.shutdown()
        return log

    return run


@pytest.mark.parametrize(("at_once", "most"), [(2, 2), (3, 2)])
def test_branches_run_side_by_side_up_to_the_limit(run, at_once, most):
    log = run(at_once)
    assert log.most == most and log.results == ["data", "cold", "a", "b", "c", "scores"]


def test_after_a_failure_nothing_else_starts_and_what_runs_comes_to_its_end(run):
    log = run(2, fails="a")
    assert log.error == "a" and sorted(log.seen) == ["a", "b", "cold", "data"]
