"""The sample stage beside the bare sampler: the same prompts, batches, settings and random numbers; and its memory as rows grow.

    python -m benchmarks.sample                       the quickstart's SFT checkpoint
    python -m benchmarks.sample --case smollm2        SmolLM2-135M-Instruct after its recipe's SFT
    python -m benchmarks.sample --memory 50000 200000 1000000      peak memory of stages of that many rows, a model of 6,000 parameters
    python -m benchmarks.sample --killed 16000                     two servers (stand-ins), one of them killed half-way: the same rows?

Bare decoding is `TorchSampler.extend` on token ids that were rendered before the clock starts, shard by shard, with entropies and with the
streams that the stage draws from. The stage renders, samples, decodes texts, verifies, writes Parquet and reads it again for its metrics.
Both run in one process, in turn. What the stage's start takes (reading the split, loading model and tokenizer) is measured by itself and
told apart. Seconds on the clock and of the processor: on a busy machine the latter say more, and count what the stage's second thread does.
Writes benchmarks/results/sample-CASE.json, sample-memory.json or sample-killed.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.data import chat, dataset
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.sample import run as stage
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

CASES: dict[str, dict[str, Any]] = {
    "quickstart": {"split": "rlvr", "problems": 4096, "k": 8, "rows_per_shard": 4096, "sampling": {"max_tokens": 16}},
    "smollm2": {"split": "rlvr", "problems": 48, "k": 8, "rows_per_shard": 128, "sampling": {"max_tokens": 8}},
}
MODELS: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "quickstart": sides.quickstart,
    "smollm2": sides.smollm2_sft,
}
TINY = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
"""The model of the memory runs: their rows are as wide as those of any model, and it draws them quickly."""


class Bare:
    """The sampler on rendered prompts, in the stage's batches."""

    def __init__(self, folder: Path, data: Path, settings: Sample) -> None:
        model = Model(path=str(folder))
        self.tokenizer = models.load_tokenizer(folder, model)
        policy = models.load_model(folder, model)
        self.settings, self.system = settings, models.system_prompt_of(folder)
        stop = models.stop_ids(policy, self.tokenizer)
        self.sampler = TorchSampler(policy, stop=stop, pad=self.tokenizer.pad_token_id, rows=settings.decode_rows)
        problems = dataset.read_split(data, settings.split)[: settings.problems]
        per_shard = max(1, settings.rows_per_shard // settings.k)
        self.shards = [
            self._rendered(problems[first : first + per_shard]) for first in range(0, len(problems), per_shard)
        ]

    def _rendered(self, problems: list[Problem]) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Token ids and streams of a shard's rows."""
        conversations = [chat.with_system_prompt(p.prompt, self.system) for p in problems]
        prompts = chat.render_prompts(self.tokenizer, conversations, [p.tools for p in problems])
        k = self.settings.k
        return [ids for ids in prompts for _ in range(k)], [
            (stream, 0) for p in problems for stream in stage.stream_ids(0, p.uid, k)
        ]

    def run(self, entropy: bool = True) -> int:
        """Decode all shards; the tokens drawn."""
        tokens = 0
        for prompts, streams in self.shards:
            completions = self.sampler.extend(
                prompts, self.settings.sampling, generator(self.sampler.device, 0), entropy=entropy, streams=streams
            )
            tokens += sum(len(completion.tokens) for completion in completions)
        return tokens


def clocked(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds on the clock and of this process's processor time, and what the work returns."""
    wall, processor = time.perf_counter(), time.process_time()
    out = work()
    return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}, out


def run_stage(folder: Path, data: Path, settings: Sample) -> dict[str, float]:
    """The whole stage into a folder that is thrown away; its metrics."""
    with tempfile.TemporaryDirectory() as work:
        report = Report(Path(work))
        metrics = stage.run(
            settings,
            Model(path=str(folder)),
            start=str(folder),
            data=data,
            out=Path(work) / "out",
            report=report,
            seed=0,
        )
        report.close()
        return metrics


def speed(folder: Path, data: Path, settings: Sample, blocks: int) -> dict[str, Any]:
    """Ratios of the stage to bare decoding, by blocks that alternate."""
    bare, one = Bare(folder, data, settings), settings.model_copy(update={"problems": 1, "k": 1})
    run_stage(folder, data, one)
    bare.run()  # both are warm from here on
    rows: list[dict[str, dict[str, float]]] = []
    for _ in range(blocks):
        start, _ = clocked(lambda: Bare(folder, data, one))
        plain, _ = clocked(lambda: bare.run(entropy=False))
        decoding, tokens = clocked(bare.run)
        whole, metrics = clocked(lambda: run_stage(folder, data, settings))
        assert tokens == round(metrics["length/mean"] * metrics["rows"]), "both sides draw the same tokens"
        rows.append({"start": start, "bare": decoding, "without_entropies": plain, "stage": whole})
        print(
            {name: {clock: round(value, 3) for clock, value in row.items()} for name, row in rows[-1].items()},
            flush=True,
        )
    return {
        "rows": metrics["rows"],
        "tokens": tokens,
        "blocks": rows,
        "stage_over_bare": {clock: ratio(rows, clock) for clock in ("wall", "processor")},
        "entropies_over_none": {
            clock: statistics.median(row["bare"][clock] / row["without_entropies"][clock] for row in rows)
            for clock in ("wall", "processor")
        },
    }


def ratio(rows: list[dict[str, dict[str, float]]], clock: str) -> dict[str, float]:
    """Of the stage without its start to bare decoding: median, lowest and highest block."""
    ratios = [(row["stage"][clock] - row["start"][clock]) / row["bare"][clock] for row in rows]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def tiny_model(folder: Path, data: Path) -> Path:
    """A model of 6,000 parameters with the tokenizer of another one."""
    model = Model.model_validate({"fresh": {"architecture": "llama", "config": TINY}})
    tokenizer = models.load_tokenizer(folder)
    tiny = data.parent / "tiny"
    models.save_model(models.fresh_model(model, tokenizer, 0), tokenizer, tiny, {"stage": "sft"})
    return tiny


def start(work: Path, model: Path, data: Path, settings: dict[str, Any], threads: int) -> subprocess.Popen[bytes]:
    """The stage in a process of its own, in an empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    job = {
        "seed": 0, "threads": threads, "inputs": {"data": str(data)},
        "settings": {"sample": settings, "model": Model(path=str(model)).model_dump()},
    }  # fmt: skip
    (work / "job.json").write_text(json.dumps(job))
    return subprocess.Popen([sys.executable, "-m", "pipelines.sample", str(work)], cwd=sides.ROOT)


def memory(folder: Path, data: Path, counts: list[int], threads: int, split: str = "rlvr") -> list[dict[str, float]]:
    """Peak memory of a stage's process for each number of rows, in completions of two tokens of a model of 6,000 parameters."""
    tiny = tiny_model(folder, data)
    problems = len(dataset.read_split(data, split))
    out = []
    for count in counts:
        settings = {"split": split, "k": -(-count // problems), "sampling": {"max_tokens": 2}}
        work = data.parent / f"memory-{count}"
        began = time.perf_counter()
        child = start(work, tiny, data, settings, threads)
        _, status, usage = os.wait4(child.pid, 0)
        assert status == 0, f"the stage of {count} rows failed"
        body = json.loads((work / "out" / "samples.json").read_text())
        out.append(
            {
                "rows": body["rows"],
                "peak_mb": usage.ru_maxrss / 1024,
                "seconds": time.perf_counter() - began,
                "shards_mb": sum(path.stat().st_size for path in (work / "out" / "samples").iterdir()) / 1e6,
            }
        )
        print({name: round(value, 1) for name, value in out[-1].items()}, flush=True)
        shutil.rmtree(work)
    return out


def server_of(work: Path) -> int:
    """Process id of one of the servers that a stage has started."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            arguments = path.read_bytes().decode().split("\0")
            if arguments[1:2] == [str(sides.ROOT / "tests" / "stand_in.py")] and arguments[2] == str(work / "served"):
                return int(path.parent.name)
    raise ProcessLookupError(f"no server of {work}")


def killed(folder: Path, data: Path, count: int, threads: int) -> dict[str, Any]:
    """Rows of two servers, undisturbed and with one of them killed when half of the shards are there.

    The servers are the stand-ins of the tests, which decode one row after the other: seconds say nothing of a real server.
    """
    body: dict[str, Any] = {"rows": count // 16 * 16}
    tiny, files = tiny_model(folder, data), []
    for kill in (False, True):
        work = data.parent / f"killed-{kill}"
        command = [sys.executable, str(sides.ROOT / "tests" / "stand_in.py")]
        sampler = {"weights": str(work / "served"), "serve": {"command": command, "count": 2}}
        settings = {
            "split": "rlvr", "k": 16, "problems": count // 16, "rows_per_shard": 1024, "sampling": {"max_tokens": 2}, "sampler": sampler,
        }  # fmt: skip
        began = time.perf_counter()
        child = start(work, tiny, data, settings, threads)
        written, half, peak, victim = work / "out" / "samples", count // 2048, 0, 0
        while child.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{child.pid}/status").read_text()
                peak = max(peak, int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]))
                if kill and not victim and len(list(written.glob("shard-*"))) >= half:
                    victim = server_of(work)
                    os.kill(victim, signal.SIGKILL)
            time.sleep(0.1)
        assert child.returncode == 0 and bool(victim) == kill
        seconds = time.perf_counter() - began
        files.append(contents(written))
        name = "one killed" if kill else "undisturbed"
        dropped = "dropped; its prompts are asked elsewhere" in (work / "spool.jsonl").read_text()
        body[name] = {
            "seconds": seconds,
            "rows_per_s": body["rows"] / seconds,
            "peak_mb": peak / 1024,
            "server_dropped": dropped,
        }
        print(name, body[name], flush=True)
    assert body["one killed"]["server_dropped"] and not body["undisturbed"]["server_dropped"]
    return body | {"shards": len(files[0]), "same_bytes": files[0] == files[1]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="quickstart")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--memory", type=int, nargs="+", metavar="ROWS", help="peak memory instead, of stages of these rows"
    )
    parser.add_argument("--killed", type=int, metavar="ROWS", help="rows of two servers instead, one of them killed")
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    body: dict[str, Any] = {"measured": time.strftime("%Y-%m-%d")}
    if args.memory:
        folder, data = sides.quickstart(args.folder.absolute() / "quickstart")
        sides.store("sample-memory", body | {"runs": memory(folder, data, args.memory, args.threads)})
        return
    if args.killed:
        folder, data = sides.quickstart(args.folder.absolute() / "quickstart", steps=1)
        body |= killed(folder, data, args.killed, args.threads)
        print(body)
        sides.store("sample-killed", body)
        return
    folder, data = MODELS[args.case](args.folder.absolute() / args.case)
    body |= {"case": args.case, **speed(folder, data, Sample.model_validate(CASES[args.case]), args.blocks)}
    print(body["stage_over_bare"], body["entropies_over_none"])
    sides.store(f"sample-{args.case}", body)


if __name__ == "__main__":
    main()
