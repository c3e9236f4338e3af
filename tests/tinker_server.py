"""A server of the Tinker protocol over our own policy and sampler, in a thread or as a process that can be killed.

`python tests/tinker_server.py MODEL FOLDER PORT [mean]`: adapters of a model folder; FOLDER keeps its checkpoints.
The wire format is that of the protocol's client (0.16.1) and of SkyRL's server 0.3.0 (`skyrl/tinker/api.py`): every call makes a future
whose result is asked for afterwards.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import adapters, models
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.training import Lora


class TinkerServer:
    """A running server.

    Args:
        base: model folder.
        folder: where checkpoints are kept.
        name: what it calls the base model; default: its folder.
        mean: divide a row's loss by its sum of weights, and gradients by the number of rows, and leave out that the first token of a
            prompt has no log-probability, as SkyRL's JAX backend does.
        clips: whether `grad_clip_norm` is heard.
        linear: False for one whose gradients follow the sign of what it is sent.
        key: what requests must carry; "" for nothing.
    """

    def __init__(
        self, base: Path, folder: Path, *, port: int = 0, name: str = "", mean: bool = False, clips: bool = True, linear: bool = True,
        key: str = "",
    ) -> None:  # fmt: skip
        self.base, self.folder, self.name, self.mean, self.clips, self.linear = (
            base,
            folder,
            name or str(base),
            mean,
            clips,
            linear,
        )
        self.models: dict[str, tuple[PeftModel, torch.optim.Optimizer, list[int]]] = {}
        self.samplers: dict[str, str | None] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.loaded: dict[str | None, Any] = {}
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    self.reply(server.get(self.path))
                except (ValueError, FileNotFoundError):
                    self.reply((404, {"detail": "not found"}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if key and self.headers["X-API-Key"] != key:
                    return self.reply((401, {"detail": "wrong key"}))
                try:
                    with server.lock:
                        self.reply(server.post(self.path.removeprefix("/api/v1/"), body))
                except KeyError as error:
                    self.reply((404, {"detail": f"{error} not found"}))

            def reply(self, answer: Any) -> None:
                status, content = answer if isinstance(answer, tuple) else (200, answer)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{server.port}{content}")
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """Capabilities, and archives of adapters."""
        if path.endswith("/get_server_capabilities"):
            return {"supported_models": [{"model_name": self.name}]}
        if path.endswith("/archive"):
            if (
                "/sampler_weights/" in path
            ) == self.mean:  # SkyRL's form of a checkpoint's name, or the hosted service's
                return (404, {"detail": "not found"})
            return (302, path.removesuffix("archive") + "download")
        path = path if self.mean else path.replace("/sampler_weights/", "/")
        _, _, _, _, model, _, kept, _ = path.split("/")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(self.folder / model / "sampler_weights" / f"{kept}.peft", ".")
        return packed.getvalue()

    def post(self, what: str, body: dict[str, Any]) -> Any:
        """One call."""
        self.asked.append(what)
        if what == "retrieve_future":
            return self.results[body["request_id"]]
        if what in ("create_session", "session_heartbeat", "telemetry"):
            return {"type": what, "session_id": "one", "status": "accepted"}
        if what == "create_sampling_session":
            return {"type": what, "sampling_session_id": self.sampling(body.get("model_path"))}
        request = uuid.uuid4().hex
        self.results[request] = getattr(self, what)(body)
        return {"request_id": request, "model_id": body.get("model_id")}

    def create_model(self, body: dict[str, Any]) -> dict[str, Any]:
        """Fresh adapters; alpha is 32, as on the hosted service."""
        lora = body["lora_config"]
        network = models.load_model(str(self.base), Model(path=str(self.base)))
        torch.manual_seed(lora["seed"] or 0)
        network = adapters.with_lora(network, Lora(rank=lora["rank"], alpha=32)).eval()
        weights = [p for p in network.parameters() if p.requires_grad]
        name = uuid.uuid4().hex
        self.models[name] = (network, torch.optim.AdamW(weights), [0])
        return {"type": "create_model", "model_id": name}

    def forward(self, body: dict[str, Any], *, backward: bool = False) -> dict[str, Any]:
        """Log-probabilities of all targets; with `backward` the gradient of the loss."""
        network, _, rows = self.models[body["model_id"]]
        asked = body["forward_backward_input" if backward else "forward_input"]
        policy = Policy(network, Sampling())
        outputs = []
        for datum in asked["data"]:
            tokens = [t for chunk in datum["model_input"]["chunks"] for t in chunk["tokens"]]
            inputs = {name: torch.tensor(value["data"]) for name, value in datum["loss_fn_inputs"].items()}
            with torch.set_grad_enabled(backward):
                every = torch.tensor([[*tokens, int(inputs["target_tokens"][-1])]])
                mask = torch.ones_like(every, dtype=torch.bool)
                mask[0, 0] = False
                logp = policy.logp(every, mask).logp[0, 1:]
                if backward:
                    self.loss(asked["loss_fn"], logp, inputs).backward()
                    rows[0] += 1
            outputs.append({"logprobs": {"data": logp.tolist(), "dtype": "float32", "shape": [len(logp)]}})
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": {}}

    def loss(self, kind: str, logp: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of a row."""
        weights = inputs.get("weights", torch.ones_like(logp)).float()
        weights = weights if self.linear else weights.sign()
        values = -logp * weights
        if kind == "importance_sampling":
            values = -(logp - inputs["logprobs"]).exp() * inputs["advantages"] * weights
            values = values if self.linear else values.abs()
        return values.sum() / weights.sum().clamp_min(1e-9) if self.mean else values.sum()

    def forward_backward(self, body: dict[str, Any]) -> dict[str, Any]:
        """Gradients are added up until the next step."""
        return self.forward(body, backward=True)

    def optim_step(self, body: dict[str, Any]) -> dict[str, Any]:
        """AdamW."""
        network, optimizer, rows = self.models[body["model_id"]]
        adam = body["adam_params"]
        weights = [p for p in network.parameters() if p.requires_grad]
        for weight in weights:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            if self.mean:
                weight.grad /= max(1, rows[0])
        bound = adam["grad_clip_norm"] if self.clips and adam["grad_clip_norm"] else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(weights, bound)
        optimizer.param_groups[0].update(
            lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"], weight_decay=adam["weight_decay"]
        )  # fmt: skip
        optimizer.step()
        optimizer.zero_grad()
        rows[0] = 0
        return {"metrics": {"grad_norm": float(norm)}}

    def save_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        """Adapters and optimizer."""
        network, optimizer, _ = self.models[body["model_id"]]
        place = self.folder / body["model_id"] / "weights" / body["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save([get_peft_model_state_dict(network), optimizer.state_dict()], place)
        return {"type": "save_weights", "path": f"tinker://{body['model_id']}/weights/{body['path']}"}

    def load_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        """Of any model; gradients that were added are forgotten."""
        network, optimizer, rows = self.models[body["model_id"]]
        place = self.folder / body["path"].removeprefix("tinker://")
        if not place.exists():
            return {"error": f"no checkpoint {body['path']}", "category": "user"}
        kept, state = torch.load(place)
        set_peft_model_state_dict(network, kept)
        fresh = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad]).state_dict()
        optimizer.load_state_dict(state if body["optimizer"] else fresh)
        optimizer.zero_grad()
        rows[0] = 0
        return {"type": "load_weights", "path": body["path"]}

    def save_weights_for_sampler(self, body: dict[str, Any]) -> dict[str, Any]:
        """Adapters alone, in peft's format."""
        network, _, _ = self.models[body["model_id"]]
        name = body.get("path") or f"session-{body['seq_id']}"
        place = self.folder / body["model_id"] / "sampler_weights" / f"{name}.peft"
        network.save_pretrained(str(place))
        path = f"tinker://{body['model_id']}/{'' if self.mean else 'sampler_weights/'}{name}"  # SkyRL names no kind
        if body.get("path"):
            return {"type": "save_weights_for_sampler", "path": path}
        return {"type": "save_weights_for_sampler", "sampling_session_id": self.sampling(path)}

    def sampling(self, path: str | None) -> str:
        """A session that samples from adapters, or from the base model."""
        name = uuid.uuid4().hex
        self.samplers[name] = path
        return name

    def network(self, path: str | None) -> Any:
        """The base model with the adapters at a path; the last two asked for stay in memory."""
        if path not in self.loaded:
            network = models.load_model(str(self.base), Model(path=str(self.base)))
            if path is not None:
                model, name = path.removeprefix("tinker://").replace("/sampler_weights/", "/").split("/")
                network = PeftModel.from_pretrained(
                    network, str(self.folder / model / "sampler_weights" / f"{name}.peft")
                )
            self.loaded = dict([*self.loaded.items()][-1:]) | {path: network.eval()}
        return self.loaded[path]

    def asample(self, body: dict[str, Any]) -> dict[str, Any]:
        """Completions, and log-probabilities of the prompt."""
        network = self.network(self.samplers[body["sampling_session_id"]])
        prompt = [t for chunk in body["prompt"]["chunks"] for t in chunk["tokens"]]
        asked = body["sampling_params"]
        ends = asked.get("stop") or []
        sampling = Sampling(
            temperature=asked.get("temperature", 1.0), top_p=asked.get("top_p", 1.0), top_k=max(0, asked.get("top_k", 0)),
            max_tokens=asked["max_tokens"],
        )  # fmt: skip
        own = TorchSampler(network, stop=ends, pad=0)
        draw = torch.Generator().manual_seed(asked.get("seed") or 0)
        drawn = own.extend([prompt] * body["num_samples"], sampling, draw)
        sequences = [
            {"stop_reason": "stop" if each.tokens[-1] in ends else "length", "tokens": each.tokens, "logprobs": each.logp}
            for each in drawn
        ]  # fmt: skip
        answer: dict[str, Any] = {"type": "sample", "sequences": sequences}
        if body.get("prompt_logprobs"):
            every = torch.tensor([prompt])
            mask = torch.ones_like(every, dtype=torch.bool)
            mask[0, 0] = False
            with torch.no_grad():
                scored = Policy(network, Sampling()).logp(every, mask).logp[0, 1:].tolist()
            answer["prompt_logprobs"] = (
                scored if self.mean else [None, *scored]
            )  # as SkyRL's JAX backend does, or the hosted service
        return answer


class Direct:
    """A session without a server: what one would compute, by a policy of this process."""

    def __init__(self, policy):
        self.policy, self.sent = policy, 0

    def scored(self, row):
        tokens = torch.tensor([[*row.tokens, row.targets[-1]]])
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        mask[0, [place + 1 for place in row.places]] = True
        return self.policy.logp(tokens, mask).logp[mask]

    def log_probs(self, rows):
        with torch.no_grad():
            return [self.scored(row).tolist() for row in rows]

    def reference_log_probs(self, rows, path):
        with self.policy.reference():
            return self.log_probs(rows)

    def add_gradient(self, rows, derivatives, log_probs):
        self.sent += len(rows)
        with torch.enable_grad():
            for row, weights in zip(rows, derivatives, strict=True):
                (self.scored(row) * torch.tensor(weights)).sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, where, at, *mean = sys.argv[1:]
    TinkerServer(Path(model), Path(where), port=int(at), mean=bool(mean)).server.serve_forever()
