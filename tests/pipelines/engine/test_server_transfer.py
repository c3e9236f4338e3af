"""Weights sent to a stand-in over the routes of vLLM's weight transfer; on the real one: tests/real_vllm."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import toys
from stand_in import Receiver, StandIn, until_the_test_ends

from pipelines.base.errors import Interrupted, StaleWeights
from pipelines.engine import server_transfer
from pipelines.engine.server_transfer import ROUTES, Declined, Source, Transfer
from pipelines.engine.vllm_worker.whetstone_worker import ENGINE

OFFERS = {"weight_transfer_config": {"backend": ENGINE}}


def receiving(folder, **settings):
    server = StandIn(folder, **OFFERS)
    server.transfer = Receiver(server, **settings)
    return server


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    yield from until_the_test_ends(receiving(tmp_path / "served"), monkeypatch)


@pytest.fixture
def second(tmp_path, monkeypatch):
    yield from until_the_test_ends(receiving(tmp_path / "served"), monkeypatch)


def trainer(tmp_path, start, servers, *overrides, transfer="auto"):
    addresses = [server.url for server in servers]
    where = (
        f"rlvr.sampler={{urls: {addresses}, weights: {servers[0].weights}, weight_transfer: {transfer}, timeout_s: 20}}"
    )
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), where, "rlvr.optimizer.learning_rate=0.01", *overrides)


def lines(tmp_path, kind):
    return [body for body in toys.spool(tmp_path / "work") if body["kind"] == kind]


def write(run, folder):
    run.learner.weights.full.save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)


def push(run):
    run.server.push(run.learner.weights.full, run.tokenizer)


def change(run):
    with torch.no_grad():
        for weight in run.learner.weights.full.parameters():
            weight.mul_(1.1)


@pytest.mark.slow
def test_a_run_sends_its_weights_and_writes_no_folder(tmp_path, start, stand_in, second):
    run = trainer(tmp_path, start, [stand_in, second])
    write(run, stand_in.weights)  # what servers of the user's were started on
    before = {path: path.stat().st_mtime_ns for path in stand_in.weights.iterdir()}
    run.run()
    metrics = [line["values"] for line in lines(tmp_path, "metrics")]
    assert len(metrics) == 4 and max(v.get("mismatch/max", 0) for v in metrics) < 1e-3
    assert max(v["server/weights_mismatch"] for v in metrics) < 1e-5 and min(v["time/push_s"] for v in metrics) > 0
    assert before == {path: path.stat().st_mtime_ns for path in stand_in.weights.iterdir()}
    for server in (stand_in, second):
        routes = [path for path in server.calls if path in ROUTES]
        assert routes == [*ROUTES[:1], *ROUTES[1:], *(4 - 1) * [route for route in ROUTES if "init" not in route]]
        assert server.calls.count("/reset_prefix_cache") == 4 and "/collective_rpc" not in server.calls
        assert not server.paused and server.transfer.joined == 1
    assert stand_in.transfer.bytes == 4 * sum(p.numel() * p.element_size() for p in run.learner.model.parameters())


def test_what_is_sent_is_what_a_folder_holds(tmp_path, start, stand_in):
    """Byte for byte, so which way weights take cannot change what a server samples."""
    from safetensors.torch import load_file

    run = trainer(tmp_path, start, [stand_in])
    model = run.learner.weights.full
    write(run, tmp_path / "folder")
    written, sent = load_file(tmp_path / "folder/model.safetensors"), dict(Source(model))
    assert "lm_head.weight" not in sent and sent.keys() == written.keys()
    assert all(torch.equal(sent[name], written[name]) for name in written)
    update = Source(model).update()
    assert update.names == list(sent) and update.shapes == [list(tensor.shape) for tensor in sent.values()]
    assert set(update.dtypes) == {"float32"}


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "gpt2"])
def test_experts_are_sent_by_the_names_of_the_family_s_files(family, tmp_path):
    from safetensors.torch import load_file

    model = toys.model(family)
    model.save_pretrained(tmp_path)
    written, sent = load_file(tmp_path / "model.safetensors"), dict(Source(model))
    assert sent.keys() == written.keys() and all(torch.equal(sent[name], written[name]) for name in written)
    assert Source(model).update().names == list(sent)


def test_quantized_weights_are_not_sent(tmp_path):
    model = toys.model()
    model.hf_quantizer = object()
    with pytest.raises(Declined, match="quantized"):
        Source(model).update()


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("route", "lists no /finish_weight_update"),
        ("engine", "not started with --weight-transfer-config"),
        ("group", "no group was formed with it"),
    ],
)
@pytest.mark.parametrize("transfer", ["auto", "gloo"])
def test_a_server_that_takes_no_weights_reads_the_folder_or_stops_the_run(
    missing, words, transfer, tmp_path, start, stand_in, monkeypatch
):
    if missing == "route":
        stand_in.odd = {"/openapi.json": (200, {"paths": {route: {} for route in ROUTES[:4]}})}
    elif missing == "engine":
        stand_in.about = {"model_config": {"dtype": "float32"}}
    else:
        stand_in.odd = {"/init_weight_transfer_engine": (500, "no such address")}
        monkeypatch.setattr(server_transfer, "JOIN_S", 1.0)
    run = trainer(tmp_path, start, [stand_in], transfer=transfer)
    if transfer == "gloo":
        with pytest.raises(Interrupted, match=rf"sampler.weight_transfer.*{words}"):
            push(run)
        return
    push(run)
    change(run)
    push(run)
    told = [line for line in lines(tmp_path, "event") if "from the folder" in line["text"]]
    assert len(told) == 1 and words in told[0]["why"]
    assert stand_in.calls.count("/collective_rpc") == 2 and not stand_in.paused
    assert run.server.metrics["server/weights_mismatch"] < 1e-5


@pytest.mark.parametrize("at", [0, 7])
def test_a_server_that_fails_half_way_stays_paused_and_is_asked_nothing(at, tmp_path, start, stand_in, second):
    run = trainer(tmp_path, start, [stand_in, second])
    write(run, stand_in.weights)
    push(run)
    second.transfer.dies_at = at
    change(run)
    push(run)
    assert second.paused and run.server.metrics["server/dropped"] == 1
    asked = len(second.calls)
    second.transfer.dies_at = None
    change(run)
    push(run)
    assert len(second.calls) == asked, "it holds a mixture, whether it answers or not"
    assert run.server.metrics["server/weights_mismatch"] < 1e-5 and stand_in.transfer.joined == 1
    second.sampler, second.paused, second.transfer = None, False, Receiver(second)  # the user has started it again
    change(run)
    push(run)
    assert run.server.metrics["server/dropped"] == 0 and second.transfer.joined == 1
    assert [line["text"] for line in lines(tmp_path, "event")][-1] == "a decoding server is back"


def test_a_server_that_stops_taking_tensors_ends_within_the_timeout(tmp_path, start, stand_in, second):
    run = trainer(tmp_path, start, [stand_in, second])
    write(run, stand_in.weights)
    push(run)
    free = threading.Event()
    second.transfer.receive = lambda update: free.wait(30)
    for transfer in run.server.transfers.values():
        transfer.group._set_default_timeout(timedelta(seconds=1))
    change(run)
    push(run)
    free.set()
    assert run.server.metrics["server/dropped"] == 1 and run.server.metrics["server/weights_mismatch"] < 1e-5


def test_a_trainer_that_breaks_off_hangs_up(tmp_path, start, stand_in, second, monkeypatch):
    """The server waits for a tensor that does not come; it must not wait for the timeout."""
    run = trainer(tmp_path, start, [stand_in, second])
    write(run, stand_in.weights)
    push(run)
    broken = run.server.transfers[second.url]
    sent, send, answers = [], Transfer.send, []

    def break_off(transfer, tensor):
        sent.append(transfer)
        if transfer is broken and sent.count(broken) == 5:
            transfer._attempt(lambda: torch.empty(0).view(1))
            answers.append(time.monotonic())
        send(transfer, tensor)

    receive = second.transfer.receive

    def received(update):
        try:
            receive(update)
        except RuntimeError:
            answers.append(time.monotonic())
            raise

    monkeypatch.setattr(Transfer, "send", break_off)
    second.transfer.receive = received
    push(run)
    assert run.server.metrics["server/dropped"] == 1
    while len(answers) < 2 and time.monotonic() < answers[0] + 15:
        time.sleep(0.05)
    assert len(answers) == 2 and answers[1] - answers[0] < 5 and second.paused


def test_the_only_server_failing_half_way_stops_the_run_and_a_paused_one_is_refused(tmp_path, start, stand_in):
    run = trainer(tmp_path, start, [stand_in])
    write(run, stand_in.weights)
    push(run)
    stand_in.transfer.dies_at = 3
    with pytest.raises(Interrupted, match=r"the server is gone: .*stopped in the middle of a push"):
        push(run)
    (tmp_path / "again").mkdir()
    with pytest.raises(Interrupted, match=r"it is paused, .*replaced in part"):
        push(trainer(tmp_path / "again", start, [stand_in]))


@pytest.mark.parametrize(
    ("swallowed", "words"),
    [(1, "neither the new ones nor the old ones"), (99, "still holds the weights of an earlier push")],
)
def test_weights_that_a_server_takes_and_does_not_use_stop_the_run(swallowed, words, tmp_path, start, stand_in):
    run = trainer(tmp_path, start, [stand_in])
    write(run, stand_in.weights)
    push(run)
    stand_in.transfer.swallows = list(dict(Source(run.learner.weights.full)))[:swallowed]
    change(run)
    with pytest.raises(StaleWeights, match=words):
        push(run)


def test_a_group_is_formed_on_the_one_address_that_the_server_reaches(tmp_path, start, stand_in, monkeypatch):
    bound, create = [], socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda where, **more: bound.append(where) or create(where, **more))
    run = trainer(tmp_path, start, [stand_in])
    write(run, stand_in.weights)
    push(run)
    assert bound == [("127.0.0.1", 0)]
    info = next(b["init_info"] for p, b in zip(stand_in.calls, stand_in.bodies, strict=True) if "init" in p)
    assert info["place"].startswith("tcp:127.0.0.1:") and len(info["name"]) == 32 and info["size"] == 2
    import psutil

    listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1"}
