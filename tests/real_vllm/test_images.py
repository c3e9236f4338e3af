"""Models that see, with a real vLLM: what it samples of pictures is what the trainer scores, before and after a push."""

from __future__ import annotations

import json

import pytest
import torch
import toys
import vision_models
import yaml
from vllm_served import MARKS, serve, values

from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import chat
from pipelines.data.images import IMAGES
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.server import WITH_IMAGE, ServerSampler
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Server

pytestmark = MARKS
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.1}
"""vLLM's CPU kernels know no heads narrower than 32."""


def off_by(network, asked, completions):
    """Greatest difference between a server's log-probabilities and the network's own, nats."""
    policy, worst = Policy(network, Sampling()), 0.0
    for prompt, completion in zip(asked, completions, strict=True):
        tokens = torch.tensor([[*prompt, *completion.tokens]])
        mask = torch.arange(tokens.shape[1])[None] >= len(prompt)
        with torch.no_grad():
            own = policy.logp(tokens, mask).logp[mask]
        worst = max(worst, float((own - torch.tensor(completion.logp)).abs().max()))
    return worst


@pytest.mark.parametrize("family", ["idefics3", "llava"])
def test_a_family_is_sampled_from_as_it_is_scored_before_and_after_a_push(family, tmp_path, monkeypatch):
    monkeypatch.setattr(vision_models, "TEXT", vision_models.TEXT | WIDE)
    folder = vision_models.make(family, tmp_path / "model")
    settings = Model(path=str(folder))
    network, tokenizer = models.load_model(folder, settings).eval(), models.load_tokenizer(folder, settings)
    first, second = (IMAGES.add(vision_models.picture(*size, seed)) for seed, size in enumerate([(40, 24), (32, 48)]))
    texts = (f"{first}What is it?", f"Is {first} above {second}?", "No image.")
    prompts = chat.render_prompts(tokenizer, [[{"role": "user", "content": text}] for text in texts])
    asked = [prompt for prompt in prompts for _ in range(3)]
    stop = models.stop_ids(network, tokenizer)
    server = ServerSampler(Server(serve=serve()), stop=stop, context=256, work=tmp_path)
    try:
        for moved in (False, True):
            with torch.no_grad():
                for tower in network.eyes.towers() if moved else ():
                    for weight in tower.parameters():
                        weight.mul_(1.2)
            server.push(network, tokenizer)
            drawn = server.extend(asked, Sampling(max_tokens=8), generator(torch.device("cpu"), 0))
            print(family, "off by", off_by(network, asked, drawn), server.metrics)
            assert off_by(network, asked, drawn) < 2e-4
        probe = server.probes[server.endpoints[0].name + WITH_IMAGE]
        print("the tower's part", float((probe.previous - probe.first).abs().mean()))
        assert float((probe.previous - probe.first).abs().mean()) > 1e-3, "a push reaches the tower"
    finally:
        server.close()


def recipe(folder):
    """Coloured cells, for a fresh model whose heads are wide enough."""
    path = vision_models.recipe(folder)
    body = yaml.safe_load(path.read_text())
    body["model"]["fresh"]["config"]["head_dim"] = 32
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Data about coloured cells, and a fresh model that has seen a little SFT."""
    folder = tmp_path_factory.mktemp("begun")
    of = recipe(folder)
    data = vision_models.data(folder / "data", read_recipe(of).model)
    (folder / "sft").mkdir()
    toys.sft_trainer(folder / "sft", data, of=of).run()
    (folder / "sft/out").symlink_to(folder / "sft/work/out")
    return folder


def by_length(rows, problems):
    """A reward that tells the answers of a model apart that knows nothing yet, so that every step moves its weights."""
    for row in rows:
        row.score = float(len(row.tokens) % 2)
        row.correct, row.components = bool(row.score), {"length": row.score}


@pytest.mark.parametrize("transfer", ["gloo", "folder"])
def test_rlvr_on_pictures(transfer, tmp_path, begun):
    where = f"rlvr.sampler={json.dumps({'serve': serve(), 'weight_transfer': transfer})}"
    run = toys.trainer(tmp_path, begun, recipe(tmp_path), where, "rlvr.steps=4", "rlvr.optimizer.learning_rate=0.01")
    run.update.reward.fn.score = by_length
    before = [weight.detach().clone() for tower in run.learner.model.eyes.towers() for weight in tower.parameters()]
    run.run()
    weights, mismatch = values(tmp_path, "server/weights_mismatch"), [m for m in values(tmp_path, "mismatch/mean") if m]
    print(transfer, "weights", weights, "mismatch", mismatch, "seconds", values(tmp_path, "time/push_s"))
    assert len(weights) == 4 and max(weights) < 1e-4 and mismatch and max(mismatch) < 1e-4
    after = [weight for tower in run.learner.model.eyes.towers() for weight in tower.parameters()]
    assert not all(map(torch.equal, before, after)), "the tower learns"
    probe = run.server.probes[run.server.endpoints[0].name + WITH_IMAGE]
    assert float((probe.previous - probe.first).abs().mean()) > 0.01, "the weights that the server followed did change"
