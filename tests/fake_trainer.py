"""A trainer of somebody else's, in small: `fake_trainer.py CONFIG.json [--mode MODE]`, which keeps the contract of a stage `external`.

It scores a row's own answer a step through `compute_score`, saves a checkpoint a step, and goes on from the newest one. Modes: `dies` once
after its second step, `hangs` once at its start, `nan_once` there, `nan_metric`, `nan_weights`, `half`, `truncated`, `nothing`,
`refuses`, `console`.
"""

import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pyarrow.parquet
from safetensors.numpy import load_file, save_file


def main() -> None:
    config, mode = json.loads(Path(sys.argv[1]).read_text()), sys.argv[3] if len(sys.argv) > 3 else ""
    output = Path(config["output"])
    if mode == "refuses":
        sys.exit("fake_trainer: error: no such option")
    spec = importlib.util.spec_from_file_location("reward", config["reward"]["file"])
    reward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reward)
    rows = pyarrow.parquet.read_table(config["data"]["train"]).to_pylist()
    done = max((int(path.name.partition("_")[2]) for path in output.glob("step_*")), default=0)
    print(f"starts after step {done} with {len(rows)} rows", flush=True)
    assert os.path.isabs(config["model"])
    if mode in ("hangs", "nan_once") and not (output / "hung").exists():
        (output / "hung").touch()
        if mode == "nan_once":
            (output / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 1.0, "loss": float("nan")}) + "\n")
        time.sleep(600)

    def score():
        row = rows[step % len(rows)]
        return reward.compute_score(
            "x", row["answer"], row["answer"], {"verifier": row["verifier"], "info": row["info"]}
        )

    for step in range(done + 1, config["steps"] + 1):
        values = {
            "step": step,
            "reward": score()["score"] if mode in ("", "dies") else 0.5,
            "loss": float("nan") if mode == "nan_metric" else 1 / step,
        }
        if mode == "console":
            print(f"step:{step} - reward:{values['reward']} - loss:{values['loss']}", flush=True)
        with open(output / "metrics.jsonl", "a") as file:
            file.write(json.dumps(values) + "\n")
        if mode == "dies" and step == 2 and done == 0:
            os.abort()
        shutil.copytree(config["model"], output / f"step_{step}.part")
        os.rename(output / f"step_{step}.part", output / f"step_{step}")
    last = output / f"step_{config['steps']}"
    weights = load_file(last / "model.safetensors")
    weights = {name: weight + config["shift"] for name, weight in weights.items()}
    if mode == "nan_weights":
        weights["model.norm.weight"][0] = float("nan")
    save_file(weights, last / "model.safetensors", metadata={"format": "pt"})
    if mode == "truncated":
        os.truncate(last / "model.safetensors", 5000)
    if mode == "half":
        (last / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model-00001-of-00002.safetensors")}
        (last / "model.safetensors.index.json").write_text(json.dumps(index))
    if mode != "nothing":
        (output / "final").mkdir()
        os.rename(last, output / "final" / f"step_{config['steps']}")


if __name__ == "__main__":
    main()
