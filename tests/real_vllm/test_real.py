"""The RLVR stage with a real vLLM on a tiny model: `make test-vllm`."""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import time

import pytest
import torch
import toys
import yaml
from safetensors.torch import load_file
from vllm_served import MARKS, serve, values

from evaluation import run as evaluation
from pipelines.base.errors import Interrupted, StaleWeights
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.server_endpoint import Endpoint
from pipelines.engine.server_probe import Probe
from pipelines.engine.server_process import ServerProcess
from pipelines.engine.server_transfer import Transfer
from pipelines.recipe.settings import Evaluate
from pipelines.rlvr.pack import pack
from pipelines.stage.report import Report

pytestmark = MARKS


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A start whose attention heads are 32 wide: vLLM's CPU kernels know no narrower ones."""
    folder = tmp_path_factory.mktemp("wide")
    return toys.start(folder, recipe(folder))


def recipe(folder):
    path = toys.recipe(folder)
    body = yaml.safe_load(path.read_text())
    body["model"]["fresh"]["config"]["head_dim"] = 32
    path.write_text(yaml.safe_dump(body))
    return path


def trainer(folder, wide, *overrides, servers=1):
    where = f"rlvr.sampler={json.dumps({'serve': serve(servers)})}"
    return toys.trainer(folder, wide, recipe(folder), where, "rlvr.optimizer.learning_rate=0.001", *overrides)


def test_twenty_steps_whose_mismatch_does_not_grow(tmp_path, wide):
    run = trainer(tmp_path, wide, "rlvr.steps=20")
    answers = []

    def ask_twice(name, step):
        if (name, step) == ("credit", 1):
            sampling, prompts = Sampling(max_tokens=8), [[1, 5, 12 + i] for i in range(20) for _ in range(4)]
            for _ in range(2):
                completions = run.server.extend(prompts, sampling, generator(torch.device("cpu"), 7))
                answers.append([completion.tokens for completion in completions])

    run.phase = ask_twice
    process = run.server.endpoints[0].process
    run.run()
    weights, mismatch = values(tmp_path, "server/weights_mismatch"), [m for m in values(tmp_path, "mismatch/mean") if m]
    print("weights", weights, "mismatch", mismatch)
    assert len(weights) == 20 and max(weights) < 1e-4 and max(mismatch) < 1e-4
    assert sum(mismatch[-5:]) < 3 * sum(mismatch[:5]) + 5e-6
    moved = run.server.probes[run.server.endpoints[0].name]
    assert float((moved.previous - moved.first).abs().mean()) > 0.05, "the weights the server followed did change"
    assert run.server.endpoints[0].seeds and answers[0] == answers[1], "a seed gives the same tokens"
    assert not process.running


def events(folder, text):
    return [b for b in toys.spool(folder / "work") if b["kind"] == "event" and text in b["text"]]


@pytest.mark.parametrize("transfer", ["folder", "gloo"])
def test_each_way_of_pushing_weights(transfer, tmp_path, wide):
    run = trainer(
        tmp_path, wide, "rlvr.steps=5", f"rlvr.sampler.weight_transfer={transfer}", "rlvr.optimizer.learning_rate=0.01"
    )
    run.run()
    weights = values(tmp_path, "server/weights_mismatch")
    print("weights", weights, "seconds", values(tmp_path, "time/push_s"))
    assert len(weights) == 5 and max(weights) < 1e-4 and not events(tmp_path, "from the folder")
    probe = next(iter(run.server.probes.values()))
    assert float((probe.previous - probe.first).abs().mean()) > 0.05, "the weights that the server followed did change"
    folder = load_file(tmp_path / "work/served/model.safetensors")["model.norm.weight"]
    started = load_file(wide / "sft/out/model/model.safetensors")["model.norm.weight"]
    assert torch.equal(folder, started) == (transfer == "gloo"), "only one way writes the folder at every step"


def test_a_push_that_is_broken_off_half_way_leaves_a_paused_server_and_no_mixture(tmp_path, wide, monkeypatch):
    more = ("rlvr.steps=3", "rlvr.commit.every=1")
    sent, state = [], []
    send, end = Transfer.send, ServerProcess.end

    def break_off(transfer, tensor):
        sent.append(tensor)
        if len(sent) == 30:  # in the second push
            transfer._attempt(lambda: (_ for _ in ()).throw(RuntimeError("broken off by the test")))
        send(transfer, tensor)

    def noted(process):
        if sent and process.running:
            state.append(run.server.endpoints[0].paused())
        end(process)

    monkeypatch.setattr(Transfer, "send", break_off)
    monkeypatch.setattr(ServerProcess, "end", noted)
    run = trainer(tmp_path, wide, *more)
    with pytest.raises(Interrupted, match="stopped in the middle of a push"):
        run.run()
    assert state[0] is True, "it was ended while it was paused"
    monkeypatch.undo()
    trainer(tmp_path, wide, *more).run()
    assert len(values(tmp_path, "mismatch/mean")) == 3 and max(values(tmp_path, "mismatch/mean")) < 1e-4


def test_evaluate_gives_the_scores_of_our_own_decoding_at_temperature_0(tmp_path, wide):
    greedy = {"temperature": 0, "max_gen_toks": 12, "until": ["z"]}
    path, answers = wide / "sft/out/model", {}
    for name, sampler in (("own", None), ("served", {"serve": serve()})):
        (tmp_path / name / "report").mkdir(parents=True)
        settings = Evaluate(
            tasks=[{"name": "palindromes", "limit": 40, "samples": 1, "sampling": greedy}], sampler=sampler
        )
        flat = evaluation.run(
            settings, Model(path=str(path)), checkpoints={"sft": str(path)}, out=tmp_path / name,
            report=Report(tmp_path / f"{name}.work"), seed=0,
        )  # fmt: skip
        answers[name] = flat, (tmp_path / name / "samples/sft/palindromes.jsonl").read_text()
    print(answers["own"][0])
    assert answers["own"] == answers["served"]


def test_adapters_alone_are_followed(tmp_path, wide):
    run = trainer(tmp_path, wide, "rlvr.steps=4", "rlvr.lora={rank: 4, alpha: 8}", "rlvr.optimizer.learning_rate=0.02")
    run.run()
    weights, mismatch = values(tmp_path, "server/weights_mismatch"), [m for m in values(tmp_path, "mismatch/mean") if m]
    print("weights", weights, "mismatch", mismatch)
    assert len(weights) == 4 and max(weights) < 1e-4 and max(mismatch) < 1e-4
    probe = run.server.probes[run.server.endpoints[0].name]
    assert float((probe.previous - probe.first).abs().mean()) > 1e-2, "the adapters that the server followed did change"
    assert len(list((tmp_path / "work" / "served").glob("push-*"))) == 1


def test_a_reload_that_leaves_the_old_head_is_refused_and_caught(tmp_path, wide, monkeypatch):
    monkeypatch.setattr(Endpoint, "reload_method", "reload_weights")
    folder = "rlvr.sampler.weight_transfer=folder"
    with pytest.raises(Interrupted, match="packed copy of a tied output head"):
        trainer(tmp_path, wide, folder).run()
    examine = Endpoint.examine

    def believe(self, config, *patience, **settings):
        config = type(config).from_dict(config.to_dict() | {"tie_word_embeddings": False})
        examine(self, config, *patience, **settings)

    monkeypatch.setattr(Endpoint, "examine", believe)
    with pytest.raises(StaleWeights, match="neither the new ones nor the old ones"):
        trainer(tmp_path, wide, folder, "rlvr.mismatch.on_breach=warn").run()
    assert len(values(tmp_path, "mismatch/mean")) == 1, "the first reload after an update was the last"


def test_a_server_killed_in_the_middle_and_the_run_resumed(tmp_path, wide):
    more = ("rlvr.steps=3", "rlvr.commit.every=1")
    run = trainer(tmp_path, wide, *more)
    endpoint = run.server.endpoints[0]
    complete, doomed = endpoint.complete, []

    def kill_first(*arguments, **settings):
        if run.start_step == 0 and values(tmp_path, "mismatch/mean") and not doomed:
            doomed.append(True)
            os.killpg(endpoint.process.process.pid, signal.SIGKILL)
            time.sleep(1)
        return complete(*arguments, **settings)

    endpoint.complete = kill_first
    with pytest.raises(Interrupted, match=r"the server is gone.*The last commit is good"):
        run.run()
    trainer(tmp_path, wide, *more).run()
    assert doomed and len(values(tmp_path, "mismatch/mean")) == 3
    assert max(values(tmp_path, "mismatch/mean")) < 1e-4


def test_two_servers_share_the_prompts_and_one_killed_in_the_middle_is_done_without_and_then_replaced(
    tmp_path, wide, monkeypatch
):
    run = trainer(tmp_path, wide, "rlvr.steps=4", "rlvr.prompts=8", servers=2)
    asked, answered, checks = [], [], []
    judge = Probe.judge

    def noted(probe, expected, answer):
        difference = judge(probe, expected, answer)
        checks.append((probe.name, answer))
        return difference

    monkeypatch.setattr(Probe, "judge", noted)

    def watch(endpoint, complete, doomed):
        def ask(prompt, count, *arguments, **settings):
            step = len(values(tmp_path, "mismatch/mean"))
            asked.append((step, endpoint.name))
            if doomed and asked.count((2, endpoint.name)) == 3:  # others are under way
                os.killpg(endpoint.process.process.pid, signal.SIGKILL)
            completions = complete(prompt, count, *arguments, **settings)
            answered.append((step, endpoint.name, tuple(prompt), len(completions)))
            return completions

        endpoint.complete = ask

    first, second = run.server.endpoints
    watch(first, first.complete, doomed=False)
    watch(second, second.complete, doomed=True)
    processes = [endpoint.process for endpoint in run.server.endpoints]
    run.run()
    for step in range(4):
        of_step = [row for row in answered if row[0] == step]
        assert sum(count for *_, count in of_step) == 8 * 4, "no prompt is lost and none is answered twice"
        shares = [sum(name == endpoint.name for _, name, *_ in of_step) for endpoint in (first, second)]
        print("step", step, "prompts answered by each", shares)
        assert step == 2 or min(shares) >= 2
    assert values(tmp_path, "server/dropped") == [0, 0, 1, 0]
    by_server = {name: [answer for who, answer in checks if who == name] for name in (first.name, second.name)}
    assert [len(answers) for answers in by_server.values()] == [4, 4], "each push was checked on both"
    for one, other in zip(*by_server.values(), strict=True):
        assert float((one - other).abs().mean()) < 1e-4
    for answers in by_server.values():
        moved = [float((new - old).abs().mean()) for old, new in itertools.pairwise(answers)]
        print("moved", moved)
        assert min(moved) > 1e-3, "each push changed what both servers say"
    assert max(values(tmp_path, "mismatch/mean")) < 1e-4 and max(values(tmp_path, "server/weights_mismatch")) < 1e-4
    assert not any(process.running for process in processes)


def off_by(model, batch):
    """Mean difference between a model's log-probabilities of a batch and those that the server gave, nats."""
    columns = pack(batch.rows, step=0, total_steps=6)
    with torch.no_grad():
        logp = Policy(model, batch.sampling).logp(columns["token"], columns["mask"]).logp
    return float((logp - columns["logp_old"])[columns["mask"]].abs().mean())


def test_a_step_ahead_each_batch_is_drawn_by_the_weights_of_the_step_before_and_a_resumed_run_goes_on(tmp_path, wide):
    corrected = ("rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]", "rlvr.optimizer.learning_rate=0.005")
    more = ("rlvr.staleness=1", "rlvr.steps=6", "rlvr.commit.every=1", *corrected)
    weights, batches = {}, {}

    def watched():
        run = trainer(tmp_path, wide, *more)
        next_batch = run.overlap.next_batch

        def take(step, version):
            weights[step] = copy.deepcopy(run.learner.model)
            batches[step] = next_batch(step, version)
            return batches[step]

        run.overlap.next_batch = take
        return run

    def stop(name, step):
        if (name, step) == ("update", 3):
            raise Interrupted("stopped by the test")

    run = watched()
    run.phase = stop
    with pytest.raises(Interrupted, match="stopped by the test"):
        run.run()
    watched().run()
    assert sorted(batches) == list(range(6))
    for step, batch in batches.items():
        drawn_by = max(0, step - 1)
        assert {row.version for row in batch.rows} == {drawn_by}
        assert off_by(weights[drawn_by], batch) < 1e-4
        assert step == 0 or off_by(weights[step], batch) > 1e-3, "the present weights say something else"
    assert values(tmp_path, "staleness/steps") == [0, 1, 1, 1, 1, 1]
    print("mismatch", values(tmp_path, "mismatch/mean"), "staleness", values(tmp_path, "staleness/kl"))
    assert max(values(tmp_path, "mismatch/mean")) < 1e-4 and max(values(tmp_path, "server/weights_mismatch")) < 1e-4
    for side in ("trainer", "sampler"):
        assert all(0 <= share <= 1 for share in values(tmp_path, f"time/{side}_idle_share"))
