"""The stages of docs/plugins.md in their processes: what they make, how they fail, and that a killed one goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import forks
import pytest
import toys

from pipelines.base.errors import DataError
from pipelines.base.files import read_json
from pipelines.contract.model_settings import Model
from pipelines.data import dataset
from pipelines.stage import process

PAGE = (toys.ROOT / "docs" / "plugins.md").read_text()
FILE = re.search(r"^```python\n# my_stages\.py\n(.*?)^```$", PAGE, re.M | re.S)[1]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return toys.start(tmp_path_factory.mktemp("begun"), overrides=["sft.steps=3"])


def command(begun, work, kind, text=FILE, **settings):
    """The command of a stage in a folder of its own, with the plug-in beside it."""
    (work / "out").mkdir(parents=True)
    (work.parent / "my_stages.py").write_text(text)
    model = str(begun / "sft/out/model")
    body = {
        "stage": kind, "seed": 0, "threads": 1, "plugins": [str(work.parent / "my_stages.py")], "inputs": {"data": str(begun / "data")},
        "settings": {kind: settings, "model": Model(path=model).model_dump()},
    }  # fmt: skip
    (work / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", "pipelines.plugin_stage", str(work)]


def run(*arguments, **settings):
    environment = toys.environment(WHETSTONE_PARENT="", OMP_NUM_THREADS="1")
    return forks.run(command(*arguments, **settings), env=environment, capture_output=True, text=True)


def prompts(folder):
    return {
        file.stem: {row.uid: len(row.prompt[0]["content"]) for row in dataset.iter_problems(file)}
        for file in folder.glob("*.parquet")
    }


@pytest.mark.slow
def test_data_that_stay_are_those_with_short_prompts(begun, tmp_path):
    done = run(begun, tmp_path / "work", "filter_long", most=14)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = prompts(begun / "data"), prompts(tmp_path / "work/out")
    assert after == {name: {u: n for u, n in rows.items() if n <= 14} for name, rows in before.items()}
    assert 0 < sum(map(len, after.values())) < sum(map(len, before.values()))
    about = dataset.about(tmp_path / "work/out")
    assert about == dataset.about(begun / "data") | {"splits": {name: len(rows) for name, rows in after.items()}}
    assert json.loads((tmp_path / "work/metrics.json").read_text()) == {"rows": sum(map(len, after.values()))}
    assert [line.name for line in sorted((tmp_path / "work/out/tokenizer").iterdir())] == [
        line.name for line in sorted((begun / "data/tokenizer").iterdir())
    ]


@pytest.mark.slow
def test_none_left_is_an_error_of_the_data(begun, tmp_path):
    with pytest.raises(DataError, match=r"no record is left in any split\."):
        dataset.derive(begun / "data", tmp_path, {"train": [], "heldout": []})


@pytest.mark.slow
def test_an_exception_names_the_file_and_the_line(begun, tmp_path):
    text = FILE.replace('message["content"]', 'message["txt"]')
    assert text != FILE
    line = next(number for number, each in enumerate(text.splitlines(), 1) if '"txt"' in each)
    done = run(begun, tmp_path / "work", "filter_long", text)
    assert done.returncode == 3
    ((problem,),) = [process.read_error(tmp_path / "work")[1]]
    assert problem.field == "filter_long"
    assert problem.problem == f"KeyError: 'txt' ({tmp_path / 'my_stages.py'}:{line})"
    assert "Traceback" in done.stdout, "the log has the whole of it"


@pytest.mark.slow
def test_training_that_is_killed_goes_on_to_the_same_weights(begun, tmp_path):
    settings = {"steps": 40, "max_length": 64, "commit": {"every": 2}, "monitors": []}
    assert run(begun, tmp_path / "whole" / "work", "answers", **settings).returncode == 0
    work, environment = tmp_path / "killed" / "work", toys.environment(OMP_NUM_THREADS="1")
    begin = command(begun, work, "answers", **settings)
    child = forks.Popen(begin, env=environment, stdout=subprocess.DEVNULL)
    while child.poll() is None and (read_json(work / "checkpoints" / "LATEST.json") or {"step": 0})["step"] < 4:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (work / "metrics.json").exists()
    forks.run(begin, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert "resumed from a commit" in (work / "spool.jsonl").read_text()
    weights = [(each / "out/model/model.safetensors").read_bytes() for each in (work, tmp_path / "whole" / "work")]
    assert weights[0] == weights[1]
    assert json.loads((work / "metrics.json").read_text())["steps"] == 40
