"""Models that see: every family's logits are transformers' own, in every layout, in decoding and in training."""

from __future__ import annotations

import copy
import hashlib

import pytest
import torch
import toys
import vision_models

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import chat, marks, thumbnails
from pipelines.data.images import IMAGES
from pipelines.data.marks import FIRST_ID
from pipelines.engine import adapters, models, vision
from pipelines.engine.layout import padded_layouts, prefix_layouts, tree_layouts
from pipelines.engine.policy import Policy
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.read import read_recipe
from pipelines.recipe.training import Lora
from tasks.tracking import rollouts

FAMILIES = sorted(vision_models.FAMILIES)


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request, tmp_path_factory):
    """A family's folder, network and tokenizer, and prompts of one image, of two and of none."""
    folder = vision_models.make(request.param, tmp_path_factory.mktemp(request.param))
    settings = Model(path=str(folder))
    tokenizer = models.load_tokenizer(folder, settings)
    first, second = (IMAGES.add(vision_models.picture(*size, seed)) for seed, size in enumerate([(40, 24), (32, 48)]))
    texts = (f"{first}What is it?", f"Is {first} above {second}?", "No image.")
    conversations = [[{"role": "user", "content": text}] for text in texts]
    prompts = chat.render_prompts(tokenizer, conversations)
    return request.param, folder, models.load_model(folder, settings).eval(), tokenizer, prompts, texts


def _own_logits(family, folder, tokenizer, text, tokens):
    """What transformers computes of a row, given its pixels."""
    from transformers import AutoModelForImageTextToText

    reader = marks.reader_of(tokenizer)
    network = AutoModelForImageTextToText.from_pretrained(folder).eval()
    ids = torch.tensor([[reader.image_token if token >= FIRST_ID else token for token in tokens]])
    parts = [reader.tensors(digest) for digest in marks.marked(text)]
    along = 1 if family == "idefics3" else 0
    pixels = {name: torch.cat([part[name] for part in parts], along) for name in (parts[0] if parts else ())}
    if family.startswith("qwen"):
        pixels["mm_token_type_ids"] = (ids == reader.image_token).int()
    with torch.no_grad():
        return network(input_ids=ids, **pixels).logits


def test_logits_are_those_that_transformers_computes_of_the_pixels(loaded):
    family, folder, network, tokenizer, prompts, texts = loaded
    for text, prompt in zip(texts, prompts, strict=True):
        row = [*prompt, 20, 21, 22]
        positions = torch.arange(len(row))[None]
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([row]), position_ids=positions).logits
        torch.testing.assert_close(logits, _own_logits(family, folder, tokenizer, text, row), atol=1e-5, rtol=1e-5)


def test_another_image_gives_other_logits(loaded):
    _, _, network, tokenizer, _, _ = loaded
    rows = []
    for seed in (5, 6):
        mark = IMAGES.add(vision_models.picture(40, 24, seed))
        rows += chat.render_prompts(tokenizer, [[{"role": "user", "content": f"{mark}What is it?"}]])
    with torch.no_grad():
        first, second = (network(input_ids=torch.tensor([row])).logits[0, -1] for row in rows)
    assert (first - second).abs().max() > 1e-3


def _batch(prompts):
    draw = torch.Generator().manual_seed(0)
    rows = [prompts[i] + torch.randint(10, 70, (4,), generator=draw).tolist() for i in (0, 0, 1, 1, 2)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    ends = torch.tensor([[len(row)] for row in rows])
    places = torch.arange(width)[None]
    return tokens, (places >= ends - 4) & (places < ends)


def _check_layouts(policy, layouts, tokens, mask, expected):
    """Rows that are laid out so have these log-probabilities, of single rows."""
    laid_out = torch.zeros(tokens.numel())
    for layout in layouts(tokens, mask, torch.arange(len(tokens)), 4096):
        logp, _ = policy.score(layout, tokens.flatten()[layout.target])
        laid_out[layout.target] = logp.detach()
    torch.testing.assert_close(laid_out.view_as(expected), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("layouts", [padded_layouts, tree_layouts, prefix_layouts])
def test_every_layout_scores_as_single_rows_do(loaded, layouts):
    _, _, network, _, prompts, _ = loaded
    policy = Policy(network, Sampling(temperature=1.0, max_tokens=5))
    tokens, mask = _batch(prompts)
    alone = policy.logp(tokens, mask).logp.detach()
    _check_layouts(policy, layouts, tokens, mask, alone)


def test_an_image_in_the_middle_of_a_branch_has_its_positions(loaded):
    """As an environment shows it: rows share the first image and the question, and see another image after their answers."""
    _, _, network, tokenizer, prompts, _ = loaded
    policy = Policy(network, Sampling(temperature=1.0, max_tokens=5))
    reader = marks.reader_of(tokenizer)
    seen = [reader.tokens(IMAGES.add(vision_models.picture(48, 32, seed))[1:-1]) for seed in (7, 8)]
    rows = [prompts[0] + [30 + i, 31] + shown + [40, 41 + i] for i, shown in enumerate(seen)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, full in enumerate(rows):
        mask[row, [len(prompts[0]), len(prompts[0]) + 1, len(full) - 2, len(full) - 1]] = True
    alone = policy.logp(tokens, mask).logp.detach()
    for layouts in (tree_layouts, prefix_layouts):
        _check_layouts(policy, layouts, tokens, mask, alone)


def _check_sampler(network, tokenizer, asked):
    """Log-probabilities that the sampler tells are those that the trainer computes of single rows, and of rows with shared prefixes."""
    sampler = TorchSampler(network, stop=models.stop_ids(network, tokenizer), pad=tokenizer.pad_token_id)
    drawn = sampler.extend(asked, Sampling(temperature=1.0, max_tokens=8), torch.Generator().manual_seed(0))
    rows = [prompt + each.tokens for prompt, each in zip(asked, drawn, strict=True)]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask, told = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros(tokens.shape)
    for row, (prompt, each) in enumerate(zip(asked, drawn, strict=True)):
        mask[row, len(prompt) : len(rows[row])] = True
        told[row, len(prompt) : len(rows[row])] = torch.tensor(each.logp)
    policy = Policy(network, Sampling(temperature=1.0, max_tokens=8))
    torch.testing.assert_close(policy.logp(tokens, mask).logp.detach(), told, atol=2e-5, rtol=1e-5)
    _check_layouts(policy, prefix_layouts, tokens, mask, told)


def test_the_sampler_draws_from_what_the_trainer_scores(loaded):
    _, _, network, tokenizer, prompts, _ = loaded
    _check_sampler(network, tokenizer, [prompts[i] for i in (0, 0, 0, 1, 1, 2)])


def test_episodes_go_on_after_images_in_several_turns(loaded):
    """Rows of a group share the first image and see others after their answers, up to three in a row."""
    _, _, network, tokenizer, prompts, _ = loaded

    def shown(*sizes):
        marks_of = [IMAGES.add(vision_models.picture(*size, 9)) for size in sizes]
        messages = [{"role": "user", "content": f"{mark}Go on."} for mark in marks_of]
        return [
            ids for message in messages for ids in (30, *chat.following_tokens(tokenizer, [message], with_end=True))
        ]

    second = [shown((40, 24)), shown((32, 48)), shown((48, 32)), shown((40, 24), (24, 24))]
    _check_sampler(network, tokenizer, [prompts[0] + follow for follow in second])


def test_the_tower_learns_unless_it_is_kept_as_it_is(loaded):
    _, folder, _, _, prompts, _ = loaded
    tokens, mask = _batch(prompts)
    for train in (True, False):
        network = models.load_model(folder, Model(path=str(folder), train_vision=train))
        policy = Policy(network, Sampling(temperature=1.0, max_tokens=5))
        (policy.logp(tokens, mask).logp * mask).sum().backward()
        towers = [weight for tower in network.eyes.towers() for weight in tower.parameters()]
        learns = any(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in towers)
        assert learns is train


def test_adapters_are_those_of_the_language_model_alone(loaded):
    _, folder, _, _, prompts, _ = loaded
    for modules in ("all-linear", ["q_proj", "v_proj"]):
        network = models.load_model(folder, Model(path=str(folder)))
        wrapped = adapters.with_lora(network, Lora(rank=2, target_modules=modules))
        adapted = [name for name, _ in wrapped.named_parameters() if "lora_A" in name]
        seeing = network.eyes.names()
        assert adapted and not [name for name in adapted if any(f".{own}." in name for own in seeing)]
        tokens, mask = _batch(prompts)
        policy = Policy(wrapped, Sampling(temperature=1.0, max_tokens=5))
        (policy.logp(tokens, mask).logp * mask).sum().backward()
        assert vision.Eyes is type(network.eyes)


def test_features_of_a_tower_that_is_not_trained_are_computed_once(loaded):
    _, folder, _, _, prompts, _ = loaded
    network = models.load_model(folder, Model(path=str(folder))).requires_grad_(False)
    policy = Policy(network, Sampling(temperature=1.0, max_tokens=5))
    tokens, mask = _batch(prompts)
    first = policy.logp(tokens, mask).logp
    calls = []
    network.eyes.model.get_image_features = lambda **_: calls.append(1)
    torch.testing.assert_close(policy.logp(tokens, mask).logp, first)
    assert not calls


def test_a_copy_of_a_model_sees_with_its_own_tower(loaded):
    _, folder, _, _, prompts, _ = loaded
    network = models.load_model(folder, Model(path=str(folder))).eval()
    copied = copy.deepcopy(network)
    with torch.no_grad():
        before = copied(input_ids=torch.tensor([prompts[0]])).logits
        for tower in network.eyes.seeing():
            for weight in tower.parameters():
                weight.zero_()
        torch.testing.assert_close(copied(input_ids=torch.tensor([prompts[0]])).logits, before)
        assert (network(input_ids=torch.tensor([prompts[0]])).logits - before).abs().max() > 1e-3


def test_a_saved_model_is_read_by_transformers_with_its_processor(loaded, tmp_path):
    _, folder, network, tokenizer, prompts, _ = loaded
    models.save_model(network, tokenizer, tmp_path / "saved", {})
    again = models.load_model(tmp_path / "saved", Model(path=str(tmp_path / "saved"))).eval()
    with torch.no_grad():
        ids = torch.tensor([prompts[1]])
        torch.testing.assert_close(again(input_ids=ids).logits, network(input_ids=ids).logits)
    for name in ("processor_config.json", "preprocessor_config.json"):
        assert (tmp_path / "saved" / name).read_bytes() == (folder / name).read_bytes()


def test_an_image_for_a_model_that_reads_text_is_refused():
    tokenizer = models.train_tokenizer("char", 64, ["abc"])
    mark = IMAGES.add(vision_models.picture(8, 8, 1))
    with pytest.raises(ModelError, match=r"model\.path: the data have images .*reads text alone"):
        chat.render_prompt(tokenizer, [{"role": "user", "content": mark + "a"}])


def test_a_family_that_looks_both_ways_is_named():
    assert "attend to later ones" in str(vision.refusal("gemma3"))
    assert vision.refusal("qwen2_5_vl") is None


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    settings = read_recipe(vision_models.recipe(folder)).model
    return folder, vision_models.data(folder / "data", settings)


@pytest.mark.slow
def test_a_fresh_model_learns_to_see(toy, tmp_path):
    """It names the colour of a cell more often than one in four; the image is all that tells."""
    _, data = toy
    overrides = ("sft.steps=120", "sft.tokens_per_step=1024", "sft.optimizer.learning_rate=0.005")
    made = toys.sft_trainer(tmp_path, data, *overrides, of=vision_models.recipe(tmp_path))
    made.run()
    losses = [values["loss/train"] for _, values in toys.history(tmp_path / "work")]
    assert losses[-1] < 0.25 * losses[0]
    (tmp_path / "sft").symlink_to(tmp_path / "work")
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "rl").mkdir()
    toys.trainer(tmp_path / "rl", tmp_path, vision_models.recipe(tmp_path / "rl"), "rlvr.prompts=16").run()
    history = [values for _, values in toys.history(tmp_path / "rl/work")]
    assert max(values["mismatch/max"] for values in history) < 1e-4
    assert sum(values["reward/mean"] for values in history) / len(history) > 0.4
    shown = {
        mark for row in rollouts.read(tmp_path / "rl/work/out") for mark in marks.marked(row["prompt"][0]["content"])
    }
    assert shown and shown == set(thumbnails.read([tmp_path / "rl/work/out"])), "pages have a picture of each"


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bytes(toy, tmp_path):
    _, data = toy
    digests = []
    for name, build in (("whole", None), ("stopped", toys.run_stopped)):
        folder = tmp_path / name
        folder.mkdir()
        path = vision_models.recipe(folder)

        def trainer(folder=folder, path=path):
            return toys.sft_trainer(folder, data, of=path)

        if build is None:
            trainer().run()
        else:
            build(trainer, step=7, part=None)
        weights = (folder / "work/out/model/model.safetensors").read_bytes()
        digests.append(hashlib.sha256(weights).hexdigest())
    assert digests[0] == digests[1]
