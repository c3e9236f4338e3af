"""The benchmarks' own parts that need no peer: they run with every method there is."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import toys
from gpu_stand_in import as_gpu

from benchmarks import growth, overhead
from pipelines.base.errors import UserError
from pipelines.contract.catalogue import bind, names


@pytest.mark.parametrize("slot", ["advantage", "credit", "objective"])
def test_every_method_can_be_clocked(slot, monkeypatch):
    methods = pytest.importorskip("benchmarks.methods")
    monkeypatch.setattr(methods, "ROWS", 16)
    columns = methods.batch()
    for name in names(f"rlvr.{slot}"):
        result = methods.apply(bind(f"rlvr.{slot}", name), columns)
        for values in result if isinstance(result, tuple) else (result,):
            assert values.shape in (columns["mask"].shape, columns["mask"].shape[:1]), name
            assert torch.isfinite(values[columns["mask"]] if values.ndim == 2 else values).all(), name


def test_overhead_counts_what_a_command_s_children_use():
    busy = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"]
    wall, processor = overhead.measured(command, dict(os.environ))
    assert wall >= 0.5 and processor >= 0.5
    with pytest.raises(RuntimeError, match="no such thing"):
        overhead.measured([sys.executable, "-c", "raise SystemExit('no such thing')"], dict(os.environ))


def test_overhead_is_the_median_of_the_pairs_differences():
    pairs = [
        {"bare": overhead.Cost(100, 90, 1), "whetstone": overhead.Cost(100 + extra, 95, 8)} for extra in (5, 9, 40)
    ]
    body = overhead.summary(pairs)
    assert body["wall_difference_s"] == 9 and body["wall_difference_percent"] == 9
    assert body["processor_difference_s"] == 5 and body["processor_difference_percent"] == 5.56
    assert body["outside_stages_s"] == 8


def test_over_optimisation_reads_what_a_stage_reported(tmp_path, capsys):
    """A run whose gold follows the law gives the law back."""
    import json
    import math

    from benchmarks import overoptimisation

    lines = []
    for step in range(1, 65):
        d = 0.1 * (step - 1)
        gain = d * (0.2 - 0.15 * math.log(d)) if d else 0.0
        values = {
            "policy/kl_to_reference": d * d / 4,
            "rollout/length_mean": 4.0,
            "reward/mean": d,
            "reward/correct": 0.5 + gain,
        }
        lines.append(json.dumps({"kind": "metrics", "step": step, "time": 0, "values": values}))
    path = tmp_path / "spool.jsonl"
    path.write_text("\n".join(lines) + "\n")
    rows = overoptimisation.curve(path)
    assert [row["step"] for row in rows] == [1, 2, 4, 8, 16, 32, 64] and rows[1]["distance"] == pytest.approx(0.1)
    overoptimisation.main([f"run={path}"])
    told = capsys.readouterr().out
    a, b = (float(told.rpartition(f"{name} ")[2].split(",")[0].split(";")[0]) for name in ("run: a", " b"))
    assert a == pytest.approx(0.2, abs=0.02) and b == pytest.approx(0.15, abs=0.02)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return toys.start(tmp_path_factory.mktemp("benchmarks"), overrides=["sft.steps=2"])


@pytest.mark.slow
@pytest.mark.parametrize("variant", [{}, {"lora": True, "learning_rate": 0.01, "sampling": {"top_p": 0.9}}])
def test_healthy_runs_breach_no_mismatch_limit_and_old_weights_do(variant, begun, tmp_path, monkeypatch):
    from benchmarks import mismatch
    from pipelines.engine.decoding_weights import DecodingWeights

    starts, size = {"base": begun / "sft/out/model"}, {"prompts": 4, "group_size": 4, "max_tokens": 6}
    about, differences = mismatch.run(
        variant, starts, begun / "data", tmp_path / "a", seed=1, steps=2, split="train", **size
    )
    assert about["breaches"] == [] and about["tokens"] == len(differences) > 2 * 4 * 4
    assert 0 < about["mean"] <= about["p999"] <= about["max"] and about["ess"] > 0.99

    monkeypatch.setattr("pipelines.engine.decoding_weights.packs", lambda device: False)
    copy = DecodingWeights._copy

    def old(self, key, weight):
        return self.copies[key] if key in self.copies else copy(self, key, weight)

    monkeypatch.setattr(DecodingWeights, "_copy", old)
    fast = variant | {"learning_rate": 0.05}
    about, _ = mismatch.run(fast, starts, begun / "data", tmp_path / "b", seed=1, steps=2, split="train", **size)
    assert about["breaches"] and "sampler and trainer disagree" in about["breaches"][0]


@pytest.mark.slow
def test_weights_of_rows_are_unbiased_and_a_clean_sampler_needs_none():
    from benchmarks import corrections

    history, share = corrections.train("nothing", "none", 0, 3)
    right = corrections.true_gradient(history[-1])
    assert len(history) == 4 and share == 0
    for correction in ("nothing", "sequence TIS", "Geo-RS"):
        assert corrections.bias(correction, "none", history, right)["distance"] < 1e-4
    biased = corrections.bias("nothing", "temperature 1.2", history, right)
    weighed = corrections.bias("sequence TIS", "temperature 1.2", history, right)
    assert weighed["distance"] < 1e-4 < biased["distance"] / 10


def test_the_sample_stage_beside_the_bare_sampler(begun):
    from benchmarks import sample
    from pipelines.sample.settings import Sample

    settings = Sample.model_validate({"k": 2, "problems": 6, "rows_per_shard": 8, "sampling": {"max_tokens": 4}})
    about = sample.speed(begun / "sft/out/model", begun / "data", settings, blocks=1)
    assert about["rows"] == 12 and 12 <= about["tokens"] <= 48
    block = about["blocks"][0]
    wanted = (block["stage"]["wall"] - block["start"]["wall"]) / block["bare"]["wall"]
    assert about["stage_over_bare"]["wall"]["median"] == pytest.approx(wanted)


@pytest.mark.slow
def test_the_memory_of_a_sample_stage(begun):
    from benchmarks import sample

    (run,) = sample.memory(begun / "sft/out/model", begun / "data", [50], threads=1, split="train")
    assert run["rows"] >= 50 and 50 < run["peak_mb"] < 5000 and run["shards_mb"] > 0


@pytest.mark.slow
def test_the_roofline_of_a_small_model(begun, capsys, monkeypatch):
    from benchmarks import roofline

    monkeypatch.setattr(roofline, "CACHE_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "SQUARE", 64)
    folder = str(begun / "sft/out/model")
    small = ["--rows", "2", "3", "--context", "6", "--tokens", "4", "--train-tokens", "64", "--train-length", "16"]
    roofline.main(["--model", folder, *small, "--blocks", "1"])
    told = capsys.readouterr().out
    assert "GB/s" in told and "decoding, 3 rows" in told and "training" in told
    assert "mfu" not in told and "bandwidth_share" not in told, "they are of a GPU"
    about = {"bytes_per_s": 1e6, "best_flops": 1e9}
    matrices = roofline.Matrices({"8x4": (8, 4, 2), "head": (8, 10, 1)}, keys=5)
    few = roofline.bound(matrices, about, {"body": 1, "head": 1}, "float32", positions=7)
    assert few == pytest.approx(4 * (2 * 32 + 80 + 35) / 1e6), "few rows: the weights and keys are read"
    many = roofline.bound(matrices, about, {"body": 10_000, "head": 10_000}, "float32")
    assert many == pytest.approx(2 * 10_000 * (2 * 32 + 80) / 1e9), "many rows: the operations take longer"


@pytest.mark.slow
def test_what_compiling_gains_is_measured_for_both(capsys):
    from benchmarks import compiled

    compiled.main(["--small"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        f"{variant}, {what}" for variant in ("as it is", "compiled") for what in ("decoding, 8 rows", "training")
    ]
    assert all("first_s" in line for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="a build with CUDA asks the GPU for its stream",
)
def test_the_roofline_of_a_gpu(begun, capsys, monkeypatch):
    """Where everything is computed, what is timed, and what comes out; the numbers are a CPU's."""
    from benchmarks import roofline
    from pipelines.engine import fixed

    stored, waits = {}, []
    for name, value in {"CACHE_BYTES": 1 << 18, "GPU_SQUARE": 32, "GPU_CALLS": 1}.items():
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(roofline.sides, "store", lambda name, body: stored.update({name: body}))
    monkeypatch.setattr(fixed, "warm_up", lambda run: run())
    monkeypatch.setattr(fixed, "record", lambda run, other: SimpleNamespace(replay=run))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(roofline, "activities", lambda: [roofline.ProfilerActivity.CPU])
    small = ["--rows", "2", "--context", "6", "--tokens", "4", "--train-tokens", "64", "--train-length", "16"]
    with as_gpu(monkeypatch):
        roofline.main(["--model", str(begun / "sft/out/model"), *small, "--blocks", "1"])
    told = capsys.readouterr().out
    assert "mfu" in told and "bandwidth_share" in told and len(waits) > 20
    block = stored["roofline-gpu-float32"]["blocks"][0]
    assert block["training"]["mfu"] > 0 and block["decoding"]["2"]["bandwidth_share"] > 0


def test_growth_counts_rows_and_pages_of_tables_with_their_indexes(tmp_path):
    def state(rows: int) -> dict:
        (tmp_path / "prefect").mkdir(exist_ok=True)
        for path in growth.DATABASES.values():
            with contextlib.closing(sqlite3.connect(tmp_path / path)) as database, database:
                database.execute("create table if not exists events (id integer primary key, body text)")
                database.execute("create index if not exists by_body on events (body)")
                database.executemany(
                    "insert into events (body) values (?)", [("x" * 500 + str(i),) for i in range(rows)]
                )
        return growth.state(tmp_path)

    before, after = state(10), state(200)
    added = growth.grown(before, after, 2)
    assert added["mlflow_tables"]["events"]["rows"] == 100
    assert 2 * 100 * 500 < added["mlflow_tables"]["events"]["bytes"] <= added["mlflow"] == added["prefect"], (
        "table and index"
    )


def test_growth_is_measured_on_one_commit(tmp_path):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        command = ["git", *who, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    with pytest.raises(UserError, match="no git checkout"):
        growth.commit(tmp_path)
    git("init", "--quiet")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git("commit", "--quiet", "--message", "one")
    first = growth.commit(tmp_path)
    (tmp_path / "log").write_text("of a run")
    assert growth.commit(tmp_path, first) == first == git("rev-parse", "HEAD"), "what is not tracked changes no stage"
    (tmp_path / "a.py").write_text("2")
    with pytest.raises(UserError, match="1 files differ"):
        growth.commit(tmp_path, first)
    git("commit", "--quiet", "--all", "--message", "two")
    with pytest.raises(UserError, match=f"began at commit {first[:12]}"):
        growth.commit(tmp_path, first)
