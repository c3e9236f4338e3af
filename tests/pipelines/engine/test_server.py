"""The server sampler against a small stand-in that speaks vLLM's API and decodes with our own sampler."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import toys

from pipelines.data.records import Stop
from pipelines.engine import models
from pipelines.engine import server as module
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server import ServerSampler
from pipelines.errors import Interrupted, RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Sampling, Server


class StandIn(ThreadingHTTPServer):
    """Loads the weights folder when told to; counts calls; can be made to fail or to skip a reload."""

    def __init__(self, weights):
        super().__init__(("127.0.0.1", 0), Handler)
        self.weights, self.calls, self.fail, self.deaf, self.drop_ids = weights, [], 0, False, False
        self.busy, self.lock = 0, threading.Lock()
        self.sampler = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def load(self):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.weights).eval()
        tokenizer = models.load_tokenizer(self.weights)
        stop = models.stop_ids(model, tokenizer)
        self.sampler = TorchSampler(model, stop=stop, pad=tokenizer.pad_token_id)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls.append(self.path)
        if self.server.fail > 0:
            self.server.fail -= 1
            return self.answer(503, {"error": "warming up"})
        if self.path == "/collective_rpc":
            if not self.server.deaf or self.server.sampler is None:
                self.server.load()
            return self.answer(200, {"results": [None]})
        if self.path == "/reset_prefix_cache":
            self.server.busy -= 1
            return self.answer(200, {"success": self.server.busy < 0})
        if self.path != "/v1/completions":
            return self.answer(404, {"error": "no such path"})
        sampling = Sampling(
            temperature=body["temperature"], top_p=body["top_p"], top_k=max(0, body["top_k"]), min_p=body["min_p"],
            max_tokens=body["max_tokens"],
        )  # fmt: skip
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        with self.server.lock:
            made = [  # as vLLM seeds: every prompt of a request alike, its n answers one apart
                self.server.sampler.extend([prompt], sampling, generator(torch.device("cpu"), body["seed"] + i))[0]
                for prompt in prompts
                for i in range(body["n"])
            ]
        choices = [
            {
                "index": i,
                "token_ids": None if self.server.drop_ids else one.tokens,
                "logprobs": {"token_logprobs": one.logp},
                "finish_reason": "stop" if one.stop == Stop.END else "length",
            }
            for i, one in enumerate(made)
        ]
        return self.answer(200, {"choices": choices[::-1]})

    def answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", (0.01, 0.01))
    made = StandIn(tmp_path / "served")
    yield made
    made.shutdown()


def trainer(tmp_path, start, stand_in, *overrides):
    where = f"rlvr.sampler={{url: '{stand_in.url}', weights: {stand_in.weights}}}"
    more = (where, "rlvr.optimizer.learning_rate=0.01", *overrides)
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)


def test_trains_with_the_server_s_tokens_and_fresh_weights_each_step(tmp_path, start, stand_in):
    made = trainer(tmp_path, start, stand_in)
    made.run()
    seen = [b["values"] for b in toys.spool(tmp_path / "work") if b["kind"] == "metrics"]
    assert len(seen) == 4 and max(v.get("mismatch/max", 0) for v in seen) < 1e-3
    assert stand_in.calls.count("/collective_rpc") == 4 and stand_in.calls.count("/reset_prefix_cache") == 4


def test_stale_weights_on_the_server_are_caught(tmp_path, start, stand_in):
    stand_in.deaf = True
    with pytest.raises(Interrupted, match="sampler and trainer disagree: row"):
        trainer(tmp_path, start, stand_in).run()


def test_a_mismatch_can_be_measured_and_corrected_instead(tmp_path, start, stand_in):
    stand_in.deaf = True
    more = ["rlvr.mismatch={on_breach: warn}", "rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]"]
    made = trainer(tmp_path, start, stand_in, *more)
    made.run()
    seen = [b["values"] for b in toys.spool(tmp_path / "work") if b["kind"] == "metrics"]
    assert max(v.get("mismatch/max", 0) for v in seen) > 1e-2
    assert all(v["ratio/max"] == pytest.approx(1, abs=1e-3) for v in seen if "ratio/max" in v)


def test_order_limits_and_waiting(tmp_path, start, stand_in):
    made = trainer(tmp_path, start, stand_in)
    stand_in.busy = 2
    made.server.push(made.learner.weights.full, made.tokenizer)
    stand_in.busy = 9
    with pytest.raises(Interrupted, match="old prefix cache"):
        made.server.push(made.learner.weights.full, made.tokenizer)
    stand_in.fail = 2
    greedy = Sampling(temperature=0, max_tokens=5)
    prompts = [[5, 6, 7], [8, 9], [], [5] * 64]
    found = made.server.extend(prompts, greedy, generator(torch.device("cpu"), 1))
    own = stand_in.sampler.extend(prompts[:2], greedy, generator(torch.device("cpu"), 1))
    assert [f.tokens for f in found[:2]] == [o.tokens for o in own]
    assert found[2].stop == found[3].stop == Stop.ERROR
    many = made.server.extend([[5, 6, 7]] * 6 + [[8, 9]] * 2, Sampling(max_tokens=6), generator(torch.device("cpu"), 1))
    assert len({tuple(one.tokens) for one in many[:6]}) > 1, "a group's answers are drawn apart"
    stand_in.drop_ids = True
    with pytest.raises(Interrupted, match="return_token_ids"):
        made.server.extend([[5, 6]], greedy, generator(torch.device("cpu"), 1))
    with pytest.raises(Interrupted, match="no entropies"):
        made.server.extend([[5, 6]], greedy, generator(torch.device("cpu"), 1), entropy=True)


def test_an_absent_server_is_named(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", (0.01,))
    sampler = ServerSampler(Server(url="http://127.0.0.1:9", weights="w"), stop=[2], context=64)
    with pytest.raises(Interrupted, match=r"http://127.0.0.1:9/v1/completions does not answer"):
        sampler.extend([[5, 6]], Sampling(max_tokens=3), generator(torch.device("cpu"), 1))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.advantage=rl_zvp"], "no entropies, which rl_zvp needs"),
        (["rlvr.objective=hapo"], "hapo sets it per token"),
        (["rlvr.processes=2"], "remove `processes` or `lora`"),
        (
            ["rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]", "rlvr.objective=gspo"],
            "gspo's ratio belongs",
        ),
    ],
)
def test_what_a_server_cannot_do_is_refused(tmp_path, overrides, words):
    where = "rlvr.sampler={url: 'http://x', weights: w}"
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), [where, *overrides]))


def test_the_key_comes_from_the_environment(monkeypatch):
    settings = Server(url="http://h:1", weights="/w", api_key_env="SAMPLER_KEY")
    with pytest.raises(Interrupted, match="SAMPLER_KEY is not set"):
        ServerSampler(settings, stop=[2], context=8)
    monkeypatch.setenv("SAMPLER_KEY", "abc-def")
    sampler = ServerSampler(settings, stop=[2], context=8)
    assert sampler.client.headers["authorization"] == "Bearer abc-def" and "abc-def" not in settings.model_dump_json()
