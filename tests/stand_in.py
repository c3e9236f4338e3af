"""A stand-in for vLLM's server: its API as far as we use it, our own sampler behind it, and faults on demand.

As a program it takes the arguments that a served vLLM gets: `python tests/stand_in.py WEIGHTS --uds SOCKET ...`.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import marks
from pipelines.data.images import IMAGES, decoded
from pipelines.data.records import Stop
from pipelines.engine import models, server_endpoint, server_images
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server_transfer import ROUTES
from pipelines.engine.vllm_worker import whetstone_group
from pipelines.engine.vllm_worker.whetstone_worker import Update

LOADING = threading.Lock()
"""transformers loads one model at a time: the threads of two stand-ins would mix their state."""


class StandIn(ThreadingHTTPServer):
    """Loads the weights folder when told to; counts calls; can be made to fail, to skip a reload, or to die."""

    request_queue_size = 512

    def __init__(self, weights, address=("127.0.0.1", 0), **about):
        self.address_family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        super().__init__(address, Handler)
        self.weights, self.about = weights, about
        self.calls, self.bodies, self.fail, self.busy = [], [], 0, 0
        self.deaf, self.mixed, self.drop_ids = False, False, False
        self.base = None
        """Folder of the weights that adapters belong to; None: it takes no adapters."""
        self.adapters = {}
        self.noise = 0.0
        """Added to the log-probabilities of completions, as another engine's rounding is."""
        self.transfer = None
        """`Receiver` of weights that are sent; None: it has no weight transfer."""
        self.paused = False
        self.odd = {}
        """Path → (status, text) of every answer there, or how often the connection ends without one."""
        self.dies_after = None
        """Completion requests until it stops answering."""
        self.keeps_features, self.features = False, None
        """Of a model that sees: keep the old tower until told to forget, as vLLM keeps what its tower made of an image; and that tower."""
        self.sees, self.reader, self.misread = False, None, False
        """Whether it takes images; what reads them; whether it reads them as other tokens."""
        self.lock, self.sampler = threading.Lock(), None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def server_bind(self):
        if self.address_family == socket.AF_UNIX:
            self.socket.bind(self.server_address)
            self.server_name, self.server_port = "stand-in", 0
        else:
            super().server_bind()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def dead(self):
        return self.dies_after is not None and self.dies_after <= 0

    def load_adapter(self, name, folder):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.base).eval()
        tokenizer = models.load_tokenizer(self.base)
        stop, pad = models.stop_ids(model, tokenizer), tokenizer.pad_token_id
        self.adapters[name] = TorchSampler(
            PeftModel.from_pretrained(model, folder).merge_and_unload(), stop=stop, pad=pad
        )

    def load(self):
        from transformers import AutoModelForCausalLM

        if self.sees:
            return self.load_seeing()
        model = AutoModelForCausalLM.from_pretrained(self.weights).eval()
        if self.mixed and self.sampler is not None:  # as vLLM's CPU build with a tied head: new weights, old head
            model.lm_head.weight = torch.nn.Parameter(self.sampler.model.lm_head.weight.detach().clone())
        tokenizer = models.load_tokenizer(self.weights)
        self.sampler = TorchSampler(model, stop=models.stop_ids(model, tokenizer), pad=tokenizer.pad_token_id)

    def load_seeing(self):
        model = models.load_model(self.weights, Model(path=str(self.weights))).eval()
        new = [tower.state_dict() for tower in model.eyes.towers()]
        if self.keeps_features and self.features is not None:
            for tower, weights in zip(model.eyes.towers(), self.features, strict=True):
                tower.load_state_dict(weights)
        self.features = self.features if self.keeps_features and self.features else new
        tokenizer = models.load_tokenizer(self.weights)
        self.reader = marks.reader_of(tokenizer)
        self.sampler = TorchSampler(model, stop=models.stop_ids(model, tokenizer), pad=tokenizer.pad_token_id)

    def generate(self, body):
        """vLLM's way to take token ids and images."""
        ids, short = list(body["token_ids"]), self.reader.short()
        start = 0
        for part in body[server_images.FIELD]:
            start = next(i for i in range(start, len(ids)) if ids[i : i + len(short)] == short)
            file = base64.b64decode(part["url"].partition(",")[2])
            whole = self.reader.tokens(marks.marked(IMAGES.add(decoded(file)))[0])
            ids[start : start + len(short)] = whole
            start += len(whole)
        choices = self.complete({"model": body["model"], "prompt": ids, **body["sampling_params"]})
        for choice in choices:
            if "logprobs" in choice:
                choice["logprobs"] = {"content": [{"logprob": x} for x in choice["logprobs"]["token_logprobs"]]}
        read = [self.reader.image_token if token >= marks.FIRST_ID else token for token in ids]
        entries = choices[0].pop("prompt_logprobs", None)
        return {
            "choices": choices,
            "prompt_token_ids": read[self.misread :] if body["return_token_ids"] else None,
            "prompt_logprobs": entries,
        }

    def complete(self, body):
        sampler = self.adapters.get(body["model"], self.sampler)
        if "prompt_logprobs" in body:
            return [{"index": 0, "prompt_logprobs": self.prompt_logps(sampler, body["prompt"])}]
        sampling = Sampling(
            temperature=body["temperature"], top_p=body["top_p"], top_k=max(0, body["top_k"]), min_p=body["min_p"],
            max_tokens=body["max_tokens"],
        )  # fmt: skip
        seed = body.get("seed", len(self.calls))
        completions = [  # as vLLM seeds: n answers of a prompt one apart
            sampler.extend([body["prompt"]], sampling, generator(torch.device("cpu"), seed + i))[0]
            for i in range(body["n"])
        ]
        choices = [
            {
                "index": i,
                "token_ids": None if self.drop_ids else completion.tokens,
                "logprobs": {
                    "token_logprobs": [logp + self.noise * (-1) ** k for k, logp in enumerate(completion.logp)]
                },
                "finish_reason": "stop" if completion.stop == Stop.END else "length",
            }
            for i, completion in enumerate(completions)
        ]
        return choices[::-1]

    def prompt_logps(self, sampler, tokens):
        with torch.no_grad():
            logp = sampler.model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        named = [token if token < marks.FIRST_ID else self.reader.image_token for token in tokens]
        return [None] + [{str(token): {"logprob": float(logp[i, token])}} for i, token in enumerate(named[1:])]


class Receiver:
    """A server's side of vLLM's weight transfer, with vLLM's order of calls: tensors are put into the model one by one.

    Args:
        server: the stand-in.
        dies_at: number of tensors after which it fails.
        swallows: names whose tensors it takes and does not use.
    """

    def __init__(self, server, dies_at=None, swallows=()):
        self.server, self.dies_at, self.swallows = server, dies_at, swallows
        self.group, self.active, self.joined, self.bytes = None, False, 0, 0

    def call(self, path, body):
        """One of the routes; raises AssertionError where vLLM would fail, RuntimeError where the trainer hangs up."""
        server = self.server
        if path == "/pause":
            server.paused = True
        elif path == "/resume":
            server.paused = False
        elif path == "/init_weight_transfer_engine":
            self.group, self.joined = (
                whetstone_group.join(whetstone_group.Meeting(**body["init_info"]), 1),
                self.joined + 1,
            )
        elif path == "/start_weight_update":
            assert self.group is not None and not self.active
            self.active = True
            if server.sampler is None:
                with LOADING:
                    server.load()
        elif path == "/update_weights":
            assert self.active and server.paused
            self.receive(Update(**body["update_info"]))
        elif path == "/finish_weight_update":
            assert self.active
            self.active = False

    def receive(self, update):
        model = self.server.sampler.model
        places = model.state_dict()
        for number, (name, dtype, shape) in enumerate(zip(update.names, update.dtypes, update.shapes, strict=True)):
            if number == self.dies_at:
                self.active, self.group = False, None
                raise AssertionError(f"no room for {name}")
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(tensor, 0).wait()
            self.bytes += tensor.numel() * tensor.element_size()
            if name not in self.swallows:
                places[name].copy_(tensor)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def address_string(self):
        return "client"

    def do_GET(self):
        if self.server.dead:
            return None
        if self.odd():
            return None
        if self.path == "/health":
            return self.answer(200, {})
        if self.path.startswith("/server_info") and self.server.about:
            return self.answer(200, {"vllm_config": self.server.about})
        if self.path == "/openapi.json" and self.server.transfer is not None:
            return self.answer(200, {"paths": {route: {} for route in ROUTES}})
        if self.path == "/openapi.json" and self.server.sees:
            fields = {"GenerateRequest": {"properties": {server_images.FIELD: {}}}}
            return self.answer(200, {"paths": {server_images.FORGET: {}}, "components": {"schemas": fields}})
        if self.path == "/is_paused" and self.server.transfer is not None:
            return self.answer(200, {"is_paused": self.server.paused})
        if self.path == "/get_world_size" and self.server.transfer is not None:
            return self.answer(200, {"world_size": 1})
        return self.answer(404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        path = self.path.partition("?")[0]
        server.calls.append(path)
        server.bodies.append(body)
        if self.path == "/v1/completions" and "prompt_logprobs" not in body and server.dies_after is not None:
            server.dies_after -= 1
        if server.dead or self.odd():
            return None
        if server.fail > 0:
            server.fail -= 1
            return self.answer(503, {"error": "warming up"})
        if self.path == "/collective_rpc":
            if not server.deaf or server.sampler is None:
                with server.lock, LOADING:
                    server.load()
            return self.answer(200, {"results": [None]})
        if self.path == "/v1/load_lora_adapter" and server.base is not None:
            if body["lora_name"] in server.adapters:
                return self.answer(400, "already loaded")
            with server.lock, LOADING:
                server.load_adapter(body["lora_name"], body["lora_path"])
            return self.answer(200, f"Success: LoRA adapter '{body['lora_name']}' added successfully.")
        if self.path == "/v1/unload_lora_adapter" and server.base is not None:
            known = server.adapters.pop(body["lora_name"], None)
            return self.answer(200 if known else 404, "removed" if known else "not found")
        if path in ROUTES and server.transfer is not None:
            try:
                server.transfer.call(path, body)
            except (AssertionError, RuntimeError) as problem:
                return self.answer(500, str(problem))
            return self.answer(200, {"message": "done"})
        if self.path == "/reset_prefix_cache":
            server.busy -= 1
            return self.answer(200, {"success": server.busy < 0})
        if self.path == server_images.FORGET:
            server.features = None
            if server.keeps_features:
                with server.lock, LOADING:
                    server.load()
            return self.answer(200, {})
        if self.path == server_images.ROUTE:
            with server.lock:
                return self.answer(200, server.generate(body))
        if self.path != "/v1/completions":
            return self.answer(404, {"error": "no such path"})
        assert not server.paused, "nothing may be asked of a server that is paused"
        with server.lock:
            choices = server.complete(body)
        return self.answer(200, {"choices": choices})

    def odd(self):
        """Whether the request has had the answer that the test wants there, or none."""
        odd, path = self.server.odd, self.path.partition("?")[0]
        answer = odd.get(path)
        if isinstance(answer, tuple):
            self.answer(*answer)
        elif answer:
            odd[path] -= 1
        return bool(answer)

    def answer(self, status, body):
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", "http://elsewhere/")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def transfers(arguments):
    """The configuration of weight transfer; None where there is none."""
    if "--weight-transfer-config" not in arguments:
        return None
    return json.loads(arguments[arguments.index("--weight-transfer-config") + 1])


def until_the_test_ends(server, monkeypatch):
    """The rest of a fixture: the server until the test ends; whoever gets no answer from it asks again at once."""
    monkeypatch.setattr(server_endpoint, "PATIENCE", (0.01, 0.01))
    yield server
    server.shutdown()


def main(arguments):
    torch.set_num_threads(1)
    if "--broken" in arguments:
        raise RuntimeError("no kernel for this model")
    if "--old" in arguments and "--weight-transfer-config" in arguments:
        raise SystemExit("vllm: error: unrecognized arguments: --weight-transfer-config")
    weights, path = arguments[0], arguments[arguments.index("--uds") + 1]
    server = StandIn(
        weights,
        path,
        model_config={"dtype": "torch.float32", "logprobs_mode": arguments[arguments.index("--logprobs-mode") + 1]},
        parallel_config={
            "worker_extension_cls": arguments[arguments.index("--worker-extension-cls") + 1],
            "data_parallel_size": 1,
        },
        device_config={"device": "cuda"},
        scheduler_config={"enable_chunked_prefill": "--no-enable-chunked-prefill" not in arguments},
        weight_transfer_config=transfers(arguments),
        **(
            {"lora_config": {"max_lora_rank": int(arguments[arguments.index("--max-lora-rank") + 1])}}
            if "--enable-lora" in arguments
            else {}
        ),
    )
    server.transfer = Receiver(server) if transfers(arguments) else None
    server.base = weights if "--enable-lora" in arguments else None
    print("serving", server.weights, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
