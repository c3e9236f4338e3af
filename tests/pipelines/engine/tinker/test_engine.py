"""A stage trained by a server of the protocol: its client for real, over HTTP, on a stand-in over our own policy."""

from __future__ import annotations

import json
from pathlib import Path

import pair_toys
import pytest
import servers
import torch
import toys
import yaml
from safetensors.torch import load_file
from tinker_server import Direct, TinkerServer

from pipelines.base.errors import Interrupted, ModelError
from pipelines.contract.sampling import Sampling
from pipelines.contract.scorer import REFERENCE, Passage
from pipelines.engine.policy import Policy
from pipelines.engine.tinker.engine import CHECKPOINT
from pipelines.engine.tinker.probe import probe
from pipelines.engine.tinker.session import Row, Session
from pipelines.preference.__main__ import work as preference
from pipelines.recipe.read import read_recipe
from pipelines.recipe.server import RemoteEngine


@pytest.fixture
def base(start):
    return start / "sft/out/model"


def recipe(folder: Path, base: Path, **sections) -> Path:
    """The toy recipe, from a model that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = toys.recipe(folder, model={"path": str(base)}, **sections)
    body = yaml.safe_load(path.read_text())
    body["model"] = {"path": str(base)}
    if "sft" not in sections:
        del body["sft"]
    path.write_text(yaml.safe_dump(body))
    return path


def session(server, **fields):
    return Session(RemoteEngine(url=server.url, rank=4, timeout_s=60, **fields), server.name, seed=1)


ROW = Row([1, 5, 9, 4, 7], [5, 9, 4, 7, 8], [2, 4])


@pytest.mark.parametrize(("mean", "form"), [(False, "cross_entropy"), (True, "importance_sampling")])
@pytest.mark.parametrize("clips", [True, False])
def test_the_server_is_probed_and_left_as_it_was(tmp_path, base, mean, form, clips):
    events = []
    with servers.serving(TinkerServer(base, tmp_path / "kept", mean=mean, clips=clips)) as server:
        own = session(server)
        before = own.log_probs([ROW])
        probe(own, range(1, 9), lambda text, **about: events.append((text, about)))
        assert own.log_probs([ROW]) == before
        (_, optimizer, _) = next(iter(server.models.values()))
        own.close()
    assert (own.form, own.averages) == (form, mean)
    assert not optimizer.state_dict()["state"]
    assert events[0][1] == {"derivatives_as": form, "averages_over_rows": mean, "clips": clips}
    assert len(events) == 1 + (not clips)


def test_a_server_whose_gradient_is_not_linear_is_refused(tmp_path, base):
    with servers.serving(TinkerServer(base, tmp_path / "kept", linear=False)) as server:
        own = session(server)
        with pytest.raises(ModelError, match="linear"):
            probe(own, range(1, 9), lambda *_, **__: None)
        own.close()


@pytest.mark.parametrize("mean", [False, True])
def test_steps_are_those_of_adamw(tmp_path, base, mean):
    """Rows of different lengths with derivatives of both signs; where the server averages, eps is scaled with it."""
    rows = [ROW, Row([1, 3], [3, 4], [1])]
    derivatives = [[0.5, -2.0], [1.5]]
    with servers.serving(TinkerServer(base, tmp_path / "kept", mean=mean)) as server:
        own = session(server)
        own.form, own.averages = ("importance_sampling", True) if mean else ("cross_entropy", False)
        network, _, _ = server.models[own._training.model_id]
        weights = [p for p in network.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in weights]
        found = own.log_probs(rows)
        own.add_gradient(rows, derivatives, found)
        own.step(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-3, weight_decay=0.0, grad_clip_norm=0.0)
        stepped = [p.detach().clone() for p in weights]
        own.close()
    with torch.no_grad():
        for weight, value in zip(weights, start, strict=True):
            weight.copy_(value)
    here = Direct(Policy(network, Sampling()))
    assert torch.allclose(torch.tensor(found[0]), torch.tensor(here.log_probs(rows)[0]), atol=1e-6)
    here.add_gradient(rows, derivatives, found)
    torch.optim.AdamW(weights, lr=0.01, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.0).step()
    assert max(float((a.detach() - b).abs().max()) for a, b in zip(weights, stepped, strict=True)) < 1e-5


@pytest.mark.parametrize("mean", [False, True])
def test_the_reference_is_the_base_model(tmp_path, base, mean):
    """Servers give a prompt's log-probabilities with a first value, None, or without it: the places are the same."""
    with servers.serving(TinkerServer(base, tmp_path / "kept", mean=mean)) as server:
        own = session(server)
        assert own.reference_log_probs([ROW], None)[0] == pytest.approx(own.log_probs([ROW])[0], abs=1e-6)
        own.close()


@pytest.mark.slow
def test_sft_on_the_server_is_sft_here(tmp_path, start, base):
    """The same adapters, data and schedule: the merged weights are equal up to rounding, and the next stage starts there."""
    with servers.serving(TinkerServer(base, tmp_path / "kept", mean=True)) as server:
        made = {}
        for name, fields in {
            "here": {"lora": {"rank": 4, "alpha": 32}, "packing": False},
            "there": {"engine": {"url": server.url, "rank": 4}},
        }.items():
            of = recipe(
                tmp_path / name,
                base,
                sft={"steps": 3, "tokens_per_step": 128, "optimizer": {"learning_rate": 0.003, "eps": 1e-6}},
            )
            trainer = toys.sft_trainer(
                tmp_path / name, start / "data", *(f"sft.{k}={json.dumps(v)}" for k, v in fields.items()), of=of
            )
            trainer.run()
            made[name] = load_file(tmp_path / name / "work/out/model/model.safetensors")
        changed = load_file(base / "model.safetensors")
        about = json.loads((tmp_path / "there/work/out/model/whetstone.json").read_text())
        assert about[CHECKPOINT].startswith("tinker://")
        assert max(float((made["here"][k] - changed[k]).abs().max()) for k in changed) > 1e-3
        assert max(float((made["here"][k] - made["there"][k]).abs().max()) for k in changed) < 1e-4
        adapter = json.loads((tmp_path / "there/work/out/adapter/adapter_config.json").read_text())
        assert adapter["base_model_name_or_path"] == str(base), "not as the server calls it"
        trained_elsewhere(tmp_path, start, base, server)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dpo", "simpo", "kto"])
@pytest.mark.few(1)
def test_a_preference_loss_on_the_server_is_that_loss_here(tmp_path, loss):
    """The reference is the model that it starts from; the merged weights after three steps are equal up to rounding."""
    begun = pair_toys.prepare(tmp_path / "begun", (pair_toys.labelled if loss == "kto" else pair_toys.rows)(40))
    with servers.serving(TinkerServer(begun / "model", tmp_path / "kept", mean=True)) as server:
        made = {}
        for name, fields in {
            "here": {"lora": {"rank": 4, "alpha": 32}},
            "there": {"engine": {"url": server.url, "rank": 4}},
        }.items():
            optimizer = pair_toys.SETTINGS["optimizer"] | {"eps": 1e-6}
            folder = pair_toys.job(begun, tmp_path / name, steps=3, loss=loss, optimizer=optimizer, **fields)
            metrics = preference(json.loads((folder / "job.json").read_text()), folder)
            made[name] = load_file(folder / "out/model/model.safetensors"), metrics
    before = load_file(begun / "model/model.safetensors")
    (here, scores), (there, others) = made["here"], made["there"]
    assert max(float((here[k] - before[k]).abs().max()) for k in before) > 1e-3
    assert max(float((here[k] - there[k]).abs().max()) for k in before) < 1e-4
    assert others["loss_heldout"] == pytest.approx(scores["loss_heldout"], abs=1e-4)


def trained_elsewhere(tmp_path, start, base, server):
    """A stage starts from what an earlier one trained there, and its reference is that; of what was trained here there is nothing there."""
    of = recipe(tmp_path / "next", base)
    for before, fits in (("there", True), ("here", False)):
        begun = tmp_path / f"begun-{before}"
        begun.mkdir()
        (begun / "data").symlink_to(start / "data")
        (begun / "sft/out").mkdir(parents=True)
        (begun / "sft/out/model").symlink_to(tmp_path / before / "work/out/model")
        engine = f"rlvr.engine={{url: {server.url}, rank: 4}}"
        if not fits:
            with pytest.raises(ModelError, match="trained elsewhere"):
                toys.trainer(tmp_path / "next" / before, begun, of, engine)
            return
        made = toys.trainer(tmp_path / "next" / before, begun, of, engine)
        passages = [Passage([1, 5, 9], [4, 7])]
        scorer = made.learner.scorer
        assert torch.allclose(*(scorer.log_probs(passages, model=m)[0] for m in ("policy", REFERENCE)), atol=1e-6)
        made.close()


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.slow
def test_rlvr_trains_and_continues(tmp_path, start, base, mean):
    """Rollouts, a reference, mini-batches; a second trainer in the same folder takes up the commit: each step is drawn once."""
    with servers.serving(TinkerServer(base, tmp_path / "kept", mean=mean)) as server:
        of = recipe(tmp_path / "run", base)
        settings = (
            f"rlvr.engine={{url: {server.url}, rank: 4}}", "rlvr.mini_batches=2", "rlvr.divergence={kind: k3, weight: 0.1}",
            "rlvr.optimizer.learning_rate=0.003", "rlvr.steps=3",
        )  # fmt: skip
        first = toys.trainer(tmp_path / "run", start, of, *settings)
        first.ended = lambda steps: steps >= 2
        first.save = lambda: None
        first.run()
        second = toys.trainer(tmp_path / "run", start, of, *settings)
        assert second.run()["steps"] == 3 and second.start_step == 2
        history = toys.history(tmp_path / "run/work")
    assert [step for step, _ in history] == [1, 2, 3]
    assert all(values["mismatch/max"] < 1e-4 for _, values in history)
    assert toys.unlisted_metrics(second.settings, {k: v for _, values in history for k, v in values.items()}) == set()
    draws = [
        json.loads(line)["step"] for line in (tmp_path / "run/work/out/report/draws.jsonl").read_text().splitlines()
    ]
    assert draws == [1, 2, 3]
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "run/work/out/model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_what_is_wrong_with_the_server_is_said(tmp_path, base, monkeypatch):
    port = servers.free_port()
    with pytest.raises(ModelError, match=f"{port} does not answer"):
        Session(RemoteEngine(url=f"http://127.0.0.1:{port}"), "m", seed=0)
    with servers.serving(TinkerServer(base, tmp_path / "kept", name="small", key="tml-right")) as server:
        with pytest.raises(ModelError, match=r"engine\.base_model: the server has no large; it has small"):
            Session(RemoteEngine(url=server.url), "large", seed=0)
        with pytest.raises(ModelError, match="401"):
            Session(RemoteEngine(url=server.url), "small", seed=0)
        monkeypatch.setenv("MY_KEY", "tml-right")
        Session(RemoteEngine(url=server.url, api_key_env="MY_KEY"), "small", seed=0).close()


def test_a_server_that_does_not_answer_ends_the_stage(tmp_path, base):
    with servers.serving(TinkerServer(base, tmp_path / "kept")) as server:
        own = Session(RemoteEngine(url=server.url, rank=4, timeout_s=2), server.name, seed=1)
        with server.lock, pytest.raises(Interrupted) as ended:
            own.log_probs([ROW])
        own.close()
    (problem,) = ended.value.problems
    assert problem.field == "engine" and problem.problem == f"{server.url} did not answer within 2 seconds"


def test_the_plan_asks_the_server(tmp_path, base):
    with servers.serving(TinkerServer(base, tmp_path / "kept")) as server:
        of = recipe(tmp_path / "plan", base, sft={})
        read = read_recipe(
            of, [f"sft.engine={{url: {server.url}}}", f"rlvr.engine={{url: {server.url}, base_model: other}}"]
        )
        said = {name: list(read.node(name).kind.problems(read.node(name))) for name in ("sft", "rlvr")}
    assert not said["sft"]
    assert [problem.field for problem in said["rlvr"]] == ["rlvr.engine.base_model"]
    assert next(read.node("sft").kind.problems(read.node("sft"))).field == "sft.engine.url"
