"""The server sampler against a small stand-in that speaks vLLM's API and decodes with our own sampler."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import forks
import psutil
import pytest
import torch
import toys
from stand_in import StandIn, until_the_test_ends

from pipelines.base.errors import Interrupted, RecipeError, StaleWeights
from pipelines.contract.sampling import Sampling
from pipelines.data.records import Stop
from pipelines.engine import server_endpoint as module
from pipelines.engine.distribution import generator
from pipelines.engine.server import ServerSampler
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Server

CPU = {
    "device_config": {"device": "cpu"},
    "scheduler_config": {"enable_chunked_prefill": True},
    "parallel_config": {"worker_extension_cls": "whetstone_worker.Reload"},
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    yield from until_the_test_ends(StandIn(tmp_path / "served"), monkeypatch)


@pytest.fixture
def second(tmp_path, monkeypatch):
    yield from until_the_test_ends(StandIn(tmp_path / "served"), monkeypatch)


def trainer(tmp_path, start, servers, *overrides):
    servers = servers if isinstance(servers, list) else [servers]
    where = f"rlvr.sampler={{urls: {[server.url for server in servers]}, weights: {servers[0].weights}}}"
    more = (where, "rlvr.optimizer.learning_rate=0.01", *overrides)
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)


def bodies(tmp_path, kind):
    return [body for body in toys.spool(tmp_path / "work") if body["kind"] == kind]


@pytest.mark.slow
def test_trains_with_the_server_s_tokens_and_new_weights_each_step(tmp_path, start, stand_in):
    trainer(tmp_path, start, stand_in).run()
    metrics = [b["values"] for b in bodies(tmp_path, "metrics")]
    assert len(metrics) == 4 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert max(v["server/weights_mismatch"] for v in metrics) < 1e-5 and {v["server/dropped"] for v in metrics} == {0}
    assert stand_in.calls.count("/collective_rpc") == 4 and stand_in.calls.count("/reset_prefix_cache") == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [("deaf", "still holds the weights of an earlier push"), ("mixed", "neither the new ones nor the old ones")],
)
@pytest.mark.parametrize("rate", ["0.01", "0.00001"])
@pytest.mark.few(2)
def test_old_or_mixed_weights_stop_the_run_whatever_a_breach_does(fault, words, rate, tmp_path, start, stand_in):
    setattr(stand_in, fault, True)
    more = [
        "rlvr.mismatch={on_breach: warn, max: 9, p999: 9, mean: 9, kl: 9, ess: 0.001}",
        f"rlvr.optimizer.learning_rate={rate}",
        "rlvr.group_size=8",
    ]
    with pytest.raises(StaleWeights, match=words) as caught:
        trainer(tmp_path, start, stand_in, *more, "rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]").run()
    assert "set serve: true" in str(caught.value)
    assert stand_in.calls.count("/collective_rpc") == 2, "the first push that matters is the one that stops it"


@pytest.mark.slow
def test_another_engine_s_mismatch_can_be_measured_and_corrected(tmp_path, start, stand_in):
    stand_in.noise = 0.02
    with pytest.raises(Interrupted, match="sampler and trainer disagree: row"):
        trainer(tmp_path, start, stand_in).run()
    more = ["rlvr.mismatch={on_breach: warn}", "rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]"]
    (tmp_path / "again").mkdir()
    trainer(tmp_path / "again", start, stand_in, *more).run()
    metrics = [b["values"] for b in bodies(tmp_path / "again", "metrics")]
    assert max(v.get("mismatch/max", 0) for v in metrics) > 1e-2
    assert all(v["ratio/max"] == pytest.approx(1, abs=1e-3) for v in metrics if "ratio/max" in v)


@pytest.mark.slow
def test_rollouts_are_spread_and_a_dead_server_s_prompts_are_asked_elsewhere(tmp_path, start, stand_in, second):
    second.dies_after = 3
    run = trainer(tmp_path, start, [stand_in, second])
    run.phase = lambda name, step: setattr(second, "dies_after", None) if (name, step) == ("commit", 1) else None
    run.run()
    metrics = [b["values"] for b in bodies(tmp_path, "metrics")]
    assert len(metrics) == 4 and all(v["rollout/length_mean"] > 0 for v in metrics)
    assert [v["server/dropped"] for v in metrics] in ([0, 1, 0, 0], [1, 1, 0, 0])
    assert max(v.get("mismatch/max", 0) for v in metrics) < 1e-3, "the other server held the same weights"
    events = [b["text"] for b in bodies(tmp_path, "event")]
    assert any("is dropped" in text for text in events) and "a decoding server is back" in events
    assert second.calls[-1] == "/v1/completions" and stand_in.calls.count("/v1/completions") > 0


@pytest.mark.slow
def test_all_servers_dead_is_an_error_and_the_run_resumes(tmp_path, start, stand_in, second):
    stand_in.dies_after = second.dies_after = 4
    with pytest.raises(Interrupted, match=r"all 2 servers are gone.*The last commit is good"):
        trainer(tmp_path, start, [stand_in, second], "rlvr.commit.every=1").run()
    stand_in.dies_after = second.dies_after = None
    trainer(tmp_path, start, [stand_in, second], "rlvr.commit.every=1").run()
    assert [b["step"] for b in bodies(tmp_path, "metrics")] == [1, 2, 3, 4]


def test_order_limits_and_waiting(tmp_path, start, stand_in):
    run = trainer(tmp_path, start, stand_in)
    stand_in.busy = 2
    run.server.push(run.learner.weights.full, run.tokenizer)
    stand_in.busy = 9
    with pytest.raises(Interrupted, match="old prefix cache"):
        run.server.push(run.learner.weights.full, run.tokenizer)
    stand_in.fail = 2
    greedy = Sampling(temperature=0, max_tokens=5)
    prompts = [[5, 6, 7], [8, 9], [], [5] * 64]
    completions = run.server.extend(prompts, greedy, generator(torch.device("cpu"), 1))
    own = stand_in.sampler.extend(prompts[:2], greedy, generator(torch.device("cpu"), 1))
    assert [c.tokens for c in completions[:2]] == [o.tokens for o in own]
    assert completions[2].stop == completions[3].stop == Stop.ERROR
    group = run.server.extend([[5, 6, 7]] * 6 + [[8, 9]] * 2, Sampling(max_tokens=6), generator(torch.device("cpu"), 1))
    assert len({tuple(completion.tokens) for completion in group[:6]}) > 1, "a group's answers are drawn apart"
    assert stand_in.bodies[-1]["repetition_penalty"] == 1.0
    stand_in.drop_ids = True
    with pytest.raises(Interrupted, match="return_token_ids"):
        run.server.extend([[5, 6]], greedy, generator(torch.device("cpu"), 1))
    with pytest.raises(Interrupted, match="no entropies"):
        run.server.extend([[5, 6]], greedy, generator(torch.device("cpu"), 1), entropy=True)


def test_several_threads_may_ask_at_once(tmp_path, start, stand_in):
    """As episodes do that do not wait for each other; time in which several decode counts once."""
    run = trainer(tmp_path, start, stand_in)
    run.server.push(run.learner.weights.full, run.tokenizer)
    greedy, prompts, before = Sampling(temperature=0, max_tokens=5), [[5, 6, 7], [8, 9], [7, 7]], time.perf_counter()
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda ids: run.server.extend([ids], greedy, None, streams=[(1, 0)])[0], prompts))
    assert 0 < run.server.decoding_s <= time.perf_counter() - before
    together = run.server.extend(prompts, greedy, None, streams=[(1, 0)] * 3)
    assert [each.tokens for each in answers] == [each.tokens for each in together]


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, "--logprobs-mode processed_logprobs"),
        ({"model_config": {"quantization": "fp8"}}, "without --quantization"),
        ({"parallel_config": {"data_parallel_size": 2}}, "list them in sampler.urls"),
        (CPU | {"parallel_config": {}}, "packed copy of a tied output head"),
        (CPU, "do not know attention heads of 16"),
    ],
)
def test_servers_that_cannot_decode_right_are_refused(about, words, tmp_path, start, stand_in, monkeypatch):
    stand_in.about = about
    run = trainer(tmp_path, start, stand_in)
    if "tied" in words:
        monkeypatch.setattr(module, "CPU_HEAD_SIZES", (16,))
    with pytest.raises(Interrupted, match=words):
        run.server.push(run.learner.weights.full, run.tokenizer)


LORA = "rlvr.lora={rank: 4, alpha: 8}"


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, "rlvr.lora={rank: 4, use_rslora: true}"])
def test_adapters_alone_are_pushed_each_under_a_name_of_its_own(tmp_path, start, stand_in, lora):
    stand_in.base = start / "sft/out/model"
    run = trainer(tmp_path, start, stand_in, lora, "rlvr.optimizer.learning_rate=0.05")
    run.run()
    metrics = [b["values"] for b in bodies(tmp_path, "metrics")]
    assert len(metrics) == 4 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert max(v["server/weights_mismatch"] for v in metrics) < 1e-5
    probe = next(iter(run.server.probes.values()))
    assert float((probe.previous - probe.first).abs().mean()) > 1e-3, "the adapters that the server followed did change"
    asked = list(zip(stand_in.calls, stand_in.bodies, strict=True))
    names = [body["lora_name"] for path, body in asked if path == "/v1/load_lora_adapter"]
    assert len(set(names)) == 4 and "/collective_rpc" not in stand_in.calls
    assert [body["lora_name"] for path, body in asked if path == "/v1/unload_lora_adapter"] == names[:-1]
    assert {body["model"] for path, body in asked if path == "/v1/completions"} == set(names)
    written = [path.name for path in stand_in.weights.iterdir()]
    assert written == [names[-1]], "older adapters are gone, and the base was not written"
    assert not list(stand_in.weights.rglob("model*.safetensors"))


@pytest.mark.slow
def test_old_adapters_stop_the_run(tmp_path, start, stand_in, monkeypatch):
    stand_in.base = start / "sft/out/model"
    load = stand_in.load_adapter
    first = []
    monkeypatch.setattr(
        stand_in, "load_adapter", lambda name, folder: load(name, (first or first.append(folder) or first)[0])
    )
    monkeypatch.setattr("pipelines.engine.server.shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(StaleWeights, match="still holds the weights of an earlier push"):
        trainer(tmp_path, start, stand_in, LORA, "rlvr.optimizer.learning_rate=0.05").run()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"lora_config": None}, "takes no LoRA adapters. Start it with --enable-lora --max-lora-rank 4"),
        ({"lora_config": {"max_lora_rank": 2}}, "adapters up to rank 2, and rlvr.lora.rank is 4"),
        ({"lora_config": {"max_lora_rank": 8}}, "It must run with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    ],
)
def test_a_server_without_adapters_is_refused_beside_lora(about, words, tmp_path, start, stand_in):
    stand_in.about = about
    run = trainer(tmp_path, start, stand_in, LORA)
    with pytest.raises(Interrupted, match=words):
        run.server.push(run.learner.weights.full, run.tokenizer)


@pytest.mark.slow
def test_sampling_ahead_with_adapters(tmp_path, start, stand_in):
    stand_in.base = start / "sft/out/model"
    more = (
        "rlvr.staleness=1",
        "rlvr.old_logp=trainer",
        "rlvr.credit=[{kind: truncated_is}]",
        "rlvr.optimizer.learning_rate=0.05",
    )
    trainer(tmp_path, start, stand_in, LORA, *more).run()
    metrics = [b["values"] for b in bodies(tmp_path, "metrics")]
    assert len(metrics) == 4 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/server_info", (200, "<html>sign in</html>"), r"answers /server_info with '<html>sign in</html>', .* a JSON object"),
        ("/server_info", (200, '{"vllm_config": {'), r"answers /server_info with .*Check the address"),
        ("/server_info", (200, [1]), r"answers /server_info with '\[1\]'"),
        ("/collective_rpc", (200, "<html>sign in</html>"), "answers /collective_rpc with"),
        ("/collective_rpc", (302, ""), r"refused /collective_rpc with status 302.*\(http://elsewhere/\): correct sampler\.urls"),
        ("/v1/completions", (200, {}), "answers /v1/completions without a list of `choices`"),
        ("/v1/completions", (200, {"choices": []}), "answers /v1/completions without a list of `choices`"),
    ],
)  # fmt: skip
def test_a_server_that_is_no_vllm_is_named_with_the_field(path, answer, words, tmp_path, start, stand_in):
    stand_in.odd = {path: answer}
    run = trainer(tmp_path, start, stand_in)
    with pytest.raises(Interrupted, match=rf"^sampler.*{stand_in.url} {words}"):
        run.server.push(run.learner.weights.full, run.tokenizer)


def test_a_server_that_hangs_up_is_asked_again_and_then_dropped(tmp_path, start, stand_in, second):
    """Between its health and its configuration: what httpx raised ended the run, whatever other servers there were."""
    stand_in.odd = {"/server_info": 1}
    run = trainer(tmp_path, start, [stand_in, second])
    run.server.push(run.learner.weights.full, run.tokenizer)
    assert run.server.metrics["server/dropped"] == 0
    second.odd, run.server.endpoints[1].about = {"/server_info": 99}, None
    run.server.push(run.learner.weights.full, run.tokenizer)
    assert run.server.metrics["server/dropped"] == 1
    stand_in.odd, run.server.endpoints[0].about = {"/server_info": 99}, None
    with pytest.raises(Interrupted, match=r"all 2 servers are gone: .*does not answer /server_info"):
        run.server.push(run.learner.weights.full, run.tokenizer)


def test_seeds_context_and_name_follow_what_the_server_says(tmp_path, start, stand_in, monkeypatch):
    monkeypatch.setattr(module, "CPU_HEAD_SIZES", (16,))
    stand_in.about = CPU | {
        "model_config": {"max_model_len": 40, "served_model_name": ["tiny"], "dtype": "torch.float32"}
    }
    run = trainer(tmp_path, start, stand_in)
    run.server.push(run.learner.weights.full, run.tokenizer)
    assert next(b for b, path in zip(stand_in.bodies, stand_in.calls, strict=True) if path == "/collective_rpc") == {
        "method": "whetstone_reload"
    }
    completion = run.server.extend([[5] * 38], Sampling(max_tokens=6), generator(torch.device("cpu"), 1))[0]
    assert len(completion.tokens) <= 2 and "seed" not in stand_in.bodies[-1] and stand_in.bodies[-1]["model"] == "tiny"
    stand_in.about = stand_in.about | {"scheduler_config": {"enable_chunked_prefill": False}}
    run.server.endpoints[0].examine(run.learner.weights.full.config)
    run.server.extend([[5] * 38], Sampling(max_tokens=6), generator(torch.device("cpu"), 1))
    assert "seed" in stand_in.bodies[-1]


def test_an_absent_server_is_named(monkeypatch, start):
    monkeypatch.setattr(module, "PATIENCE", (0.01,))
    sampler = ServerSampler(Server(url="http://127.0.0.1:9", weights="w"), stop=[2], context=64)
    with pytest.raises(Interrupted, match=r"http://127.0.0.1:9/v1/completions does not answer"):
        sampler.extend([[5, 6]], Sampling(max_tokens=3), generator(torch.device("cpu"), 1))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.advantage=rl_zvp"], "no entropies, which rl_zvp needs"),
        (["rlvr.objective=hapo"], "hapo sets it per token"),
        (["rlvr.lora=true", "rlvr.sampler.weight_transfer=gloo"], "with lora the adapters alone are pushed"),
        (["rlvr.processes=2", "rlvr.staleness=1"], "one process samples ahead. Set processes: 1"),
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{url: 'http://x'}", "`weights` is required"),
        ("{}", "name a server with `url`"),
        ("{serve: true, url: 'http://x', weights: w}", "either servers of your own"),
        ("{urls: ['http://x', 'http://x'], weights: w}", "named once"),
        ("{urls: ['http://ann:pw@x'], weights: w}", "user name or password"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(tmp_path, settings, words):
    with pytest.raises(RecipeError, match=words):
        read_recipe(toys.recipe(tmp_path), [f"rlvr.sampler={settings}"])


def test_the_key_comes_from_the_environment(monkeypatch):
    settings = Server(url="http://h:1", weights="/w", api_key_env="SAMPLER_KEY")
    with pytest.raises(Interrupted, match=r"sampler\.api_key_env: the environment has no SAMPLER_KEY"):
        ServerSampler(settings, stop=[2], context=8)
    monkeypatch.setenv("SAMPLER_KEY", "abc-def")
    sampler = ServerSampler(settings, stop=[2], context=8)
    assert sampler.endpoints[0].client.headers["authorization"] == "Bearer abc-def"
    assert "abc-def" not in settings.model_dump_json()


def serving(*arguments):
    command = [sys.executable, str(toys.ROOT / "tests" / "stand_in.py")]
    return f"rlvr.sampler={{serve: {{command: {command}, arguments: {list(arguments)}, startup_s: 120}}}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param("rlvr.full_copy=true", id="whole weights", marks=pytest.mark.long),
        pytest.param("rlvr.full_copy=false", id="tensor by tensor"),
        pytest.param(LORA, id="adapters", marks=pytest.mark.long),
    ],
)
def test_two_processes_decode_on_the_server_that_the_first_one_started(tmp_path, start, more):
    """Sharded weights are pushed by the first, into the folder and then by transfer; both ranks' prompts are answered with them."""
    changes = ["rlvr.processes=2", "rlvr.steps=3", "rlvr.optimizer.learning_rate=0.01", more]
    work = toys.job(tmp_path / "w", start, serving(), *changes)
    done = forks.run(
        [sys.executable, "-m", "pipelines.stage.launch", "pipelines.rlvr", work],
        capture_output=True, text=True, timeout=300, env=toys.environment(OMP_NUM_THREADS="1"), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    metrics = [line["values"] for line in toys.spool(work) if line["kind"] == "metrics"]
    assert len(metrics) == 3 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert max(v["server/weights_mismatch"] for v in metrics) < 1e-5
    assert [line["text"] for line in toys.spool(work) if line["kind"] == "event"].count(
        "starting a decoding server"
    ) == 1
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(work) in " ".join(p.info["cmdline"] or [])]
    assert (work / "out/model/model.safetensors").exists()


def served(tmp_path, start, *arguments):
    where = serving(*arguments)
    body = toys.recipe(tmp_path)
    return toys.trainer(tmp_path, start, body, where, "rlvr.commit.every=1", "rlvr.steps=2")


@pytest.mark.slow
def test_the_stage_starts_and_stops_a_server_itself(tmp_path, start):
    run = served(tmp_path, start)
    process = run.server.endpoints[0].process
    run.run()
    metrics = [b["values"] for b in bodies(tmp_path, "metrics")]
    assert len(metrics) == 2 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert not process.running and not process.folder.exists()
    assert "serving" in (tmp_path / "work" / "server-0.log").read_text()
    assert not [b for b in bodies(tmp_path, "event") if "from the folder" in b["text"]], "its weights were sent"
    assert (tmp_path / "work" / "served" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_vllm_without_weight_transfer_is_started_without_it(tmp_path, start):
    run = served(tmp_path, start, "--old")
    run.run()
    started = [b["command"] for b in bodies(tmp_path, "event") if b["text"] == "starting a decoding server"]
    assert [("--weight-transfer-config" in command) for command in started] == [True, False]
    assert [b["why"] for b in bodies(tmp_path, "event") if "from the folder" in b["text"]] == [
        "its /openapi.json lists no /pause"
    ]
    assert max(b["values"]["server/weights_mismatch"] for b in bodies(tmp_path, "metrics")) < 1e-5


@pytest.mark.slow
def test_a_killed_server_is_started_again_before_the_next_step(tmp_path, start, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", (0.01, 0.01))
    run = served(tmp_path, start)

    def kill(name, step):
        if (name, step) == ("metrics", 0):
            os.killpg(run.server.endpoints[0].process.process.pid, signal.SIGKILL)
            time.sleep(0.2)

    run.phase = kill
    run.run()  # the next push starts it again
    assert [b["text"] for b in bodies(tmp_path, "event")].count("starting a decoding server") == 2
    assert [b["step"] for b in bodies(tmp_path, "metrics")] == [1, 2]


@pytest.mark.slow
def test_a_server_that_does_not_start_shows_its_error(tmp_path, start):
    with pytest.raises(Interrupted, match=r"did not start. Its log .*(?s:.*)no kernel for this model"):
        served(tmp_path, start, "--broken").run()
