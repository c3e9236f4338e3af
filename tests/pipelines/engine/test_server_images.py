"""Prompts with images go to a server as placeholders and files, and what it read and sees is checked."""

from __future__ import annotations

import copy

import pytest
import torch
import vision_models
from stand_in import StandIn, until_the_test_ends

from pipelines.base.errors import Interrupted, StaleWeights
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import chat, marks
from pipelines.data.images import IMAGES
from pipelines.data.marks import FIRST_ID
from pipelines.engine import models, server_images
from pipelines.engine.distribution import generator
from pipelines.engine.policy import Policy
from pipelines.engine.server import WITH_IMAGE, ServerSampler
from pipelines.recipe.settings import Server


@pytest.fixture(scope="module", params=sorted(vision_models.FAMILIES))
def seeing(request, tmp_path_factory):
    """A family's network, tokenizer and prompts of one image, of two and of none."""
    folder = vision_models.make(request.param, tmp_path_factory.mktemp(request.param))
    settings = Model(path=str(folder))
    tokenizer = models.load_tokenizer(folder, settings)
    first, second = (IMAGES.add(vision_models.picture(*size, seed)) for seed, size in enumerate([(40, 24), (32, 48)]))
    texts = (f"{first}What is it?", f"Is {first} above {second}?", "No image.")
    prompts = chat.render_prompts(tokenizer, [[{"role": "user", "content": text}] for text in texts])
    return models.load_model(folder, settings).eval(), tokenizer, prompts, texts


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    server = StandIn(tmp_path / "served")
    server.sees = True
    yield from until_the_test_ends(server, monkeypatch)


def connected(stand_in, network, tokenizer):
    where = Server(url=stand_in.url, weights=str(stand_in.weights))
    stop = models.stop_ids(network, tokenizer)
    return ServerSampler(where, stop=stop, context=256, event=lambda *_, **__: None)


def test_the_family_s_own_processor_makes_the_row_of_what_is_sent(seeing):
    _, tokenizer, prompts, texts = seeing
    reader = marks.reader_of(tokenizer)
    for prompt, text in zip(prompts, texts, strict=True):
        sent = server_images.request(prompt, reader)
        assert max(sent["token_ids"]) < FIRST_ID and len(sent["content_parts"]) == len(marks.marked(text))
        shown = [IMAGES.image(digest) for digest in marks.marked(text)]
        words = tokenizer.decode(sent["token_ids"])
        made = reader.processor(text=[words], images=[shown] if shown else None, add_special_tokens=False)
        expected = [reader.image_token if token >= FIRST_ID else token for token in prompt]
        assert list(made["input_ids"][0]) == expected


@pytest.mark.slow
@pytest.mark.few(2)
def test_what_is_sampled_and_scored_is_one_model_and_a_push_reaches_the_tower(seeing, stand_in):
    network, tokenizer, prompts, _ = seeing
    network, stand_in.keeps_features = copy.deepcopy(network), True
    server = connected(stand_in, network, tokenizer)
    server.push(network, tokenizer)
    sampling = Sampling(max_tokens=6)
    for moved in (False, True):
        if moved:
            with torch.no_grad():
                for tower in network.eyes.towers():
                    for weight in tower.parameters():
                        weight.mul_(1.3)
            server.push(network, tokenizer)
        policy = Policy(network, sampling)
        rows = [prompt for prompt in prompts for _ in range(2)]
        drawn = server.extend(rows, sampling, generator(torch.device("cpu"), 0))
        for prompt, completion in zip(rows, drawn, strict=True):
            tokens = torch.tensor([[*prompt, *completion.tokens]])
            mask = torch.arange(tokens.shape[1])[None] >= len(prompt)
            with torch.no_grad():
                own = policy.logp(tokens, mask).logp[mask]
            torch.testing.assert_close(torch.tensor(completion.logp), own, atol=5e-5, rtol=0)
    assert {probe for probe in server.probes if probe.endswith(WITH_IMAGE)}
    assert server.metrics["server/weights_mismatch"] < 1e-5
    asked = [path for path in stand_in.calls if path in (server_images.ROUTE, "/v1/completions")]
    assert set(asked) == {server_images.ROUTE, "/v1/completions"}, "a text goes the way of texts"
    server.close()


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    folder = vision_models.make("llava", tmp_path_factory.mktemp("llava"))
    settings = Model(path=str(folder))
    return models.load_model(folder, settings).eval(), models.load_tokenizer(folder, settings)


def test_a_server_that_keeps_what_its_old_tower_saw_is_caught(llava, stand_in, monkeypatch):
    network, tokenizer = copy.deepcopy(llava[0]), llava[1]
    monkeypatch.setattr(server_images, "FORGET", "/reset_prefix_cache")
    stand_in.keeps_features = True
    server = connected(stand_in, network, tokenizer)
    server.push(network, tokenizer)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1.05)
    with pytest.raises(StaleWeights, match=r"\(with an image\) holds weights that are neither"):
        server.push(network, tokenizer)
    server.close()


def test_a_server_that_reads_an_image_as_other_tokens_is_refused(llava, stand_in):
    stand_in.misread = True
    server = connected(stand_in, *llava)
    with pytest.raises(Interrupted, match="as other tokens than the trainer"):
        server.push(*llava)
    server.close()


def test_a_server_that_takes_no_images_is_refused(llava, stand_in):
    stand_in.sees = False
    server = connected(stand_in, *llava)
    with pytest.raises(Interrupted, match="takes no images"):
        server.push(*llava)
    server.close()


def test_a_part_of_an_image_is_not_sent(llava):
    reader = marks.reader_of(llava[1])
    whole = reader.tokens(marks.marked(IMAGES.add(vision_models.picture(32, 32, 3)))[0])
    assert server_images.request([5, *whole, 6], reader)["token_ids"] == [5, *reader.short(), 6]
    for part in (whole[:-3], whole[1:]):
        with pytest.raises(Interrupted, match="in part"):
            server_images.request([5, *part, 6], reader)
