"""Papers on images, through the real trainer with a model that sees."""

from __future__ import annotations

import pytest
import torch
import toys
import vision_models

from pipelines.data.images import IMAGES
from pipelines.data.marks import FIRST_ID, marked
from pipelines.data.records import Role, by_group
from pipelines.engine import models
from pipelines.recipe.read import read_recipe


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Questions about cells, and a random model that sees them."""
    folder = tmp_path_factory.mktemp("pictures")
    model = read_recipe(vision_models.recipe(folder)).model
    vision_models.data(folder / "data", model, 60)
    tokenizer = models.load_tokenizer(folder / "data/tokenizer", model)
    models.save_model(models.fresh_model(model, tokenizer, 0), tokenizer, folder / "sft/out/model", {})
    return folder


def trainer(folder, begun, *overrides):
    return toys.trainer(folder, begun, vision_models.recipe(folder), "rlvr.steps=2", *overrides)


def test_papo_scores_answers_with_masked_images(tmp_path, begun):
    made = trainer(tmp_path, begun, "presets=[papo_images]", "rlvr.providers=[{kind: masked_images, patch: 8}]")
    provider, known = made.learner.providers["masked_images"], len(IMAGES._drawn)
    rows, _ = made.collect(0)
    columns = made.collector.pack(rows, 0, 0)
    made.learner.fill(columns["token"], columns)
    changed = 0
    with IMAGES.passing():
        for row, values in zip(rows, columns["logp_masked"], strict=True):
            twin = IMAGES.exchanged(row.tokens, lambda digest, uid=row.uid: provider._covered(digest, 0, uid))
            changed += twin != row.tokens
            assert [token for token in twin if token < FIRST_ID] == [token for token in row.tokens if token < FIRST_ID]
            with torch.no_grad():
                logits = made.learner.model(torch.tensor([twin])).logits[0].float().log_softmax(-1)
            first = row.role.index(Role.POLICY)
            expected = torch.stack([logits[i - 1, row.tokens[i]] for i in range(first, len(row.tokens))])
            torch.testing.assert_close(values[first : len(row.tokens)], expected, atol=2e-5, rtol=0)
    assert changed == len(rows) and len(IMAGES._drawn) == known
    mask = columns["mask"]
    assert (columns["logp_masked"] - columns["logp_old"])[mask].abs().max() > 1e-3
    provider.share = 0.0
    provider.fill(columns["token"], columns)
    torch.testing.assert_close(columns["logp_masked"][mask], columns["logp_old"][mask], atol=2e-5, rtol=0)
    made.run()
    assert len(IMAGES._drawn) == known


def test_papo_masks_anew_in_every_step_and_alike_in_a_group(tmp_path, begun):
    made = trainer(tmp_path, begun, "presets=[papo_images]", "rlvr.providers=[{kind: masked_images, patch: 4}]")
    covered = made.learner.providers["masked_images"]._covered
    image, other = (marked(IMAGES.add(vision_models.picture(32, 24, 70 + n)))[0] for n in range(2))
    with IMAGES.passing():
        assert covered(image, 3, "u") == covered(image, 3, "u")
        assert (
            len({covered(image, 3, "u"), covered(image, 4, "u"), covered(image, 3, "v"), covered(other, 3, "u")}) == 4
        )


def test_noisy_grpo_draws_from_noisy_images_and_trains_after_clean_ones(tmp_path, begun):
    known, drawn = len(IMAGES._drawn), []
    made = trainer(tmp_path, begun, "presets=[noisy_grpo_images]", "rlvr.group_size=4")
    extend = made.collector.sampler.extend
    made.collector.sampler.extend = lambda prefixes, *args, **more: (
        drawn.extend(prefixes) or extend(prefixes, *args, **more)
    )
    rows, _ = made.collect(0)
    levels = [row.extras.get("noise", 0.0) for row in rows]
    assert levels == [0.0, 0.3, 0.6, 0.9] * (len(rows) // 4)
    for row, level, prefix in zip(rows, levels, drawn, strict=True):
        assert (row.tokens[: len(prefix)] == list(prefix)) == (level == 0)
        assert all(IMAGES.png(IMAGES.named(token)) for token in row.tokens if token >= FIRST_ID)
    assert len(IMAGES._drawn) == known
    made.run()


@pytest.mark.parametrize("noise", ["gaussian", "patches"])
def test_noise_depends_on_the_rollout_and_its_level(tmp_path, begun, noise):
    made = trainer(tmp_path, begun, "presets=[noisy_grpo_images]", "rlvr.group_size=8", f"rlvr.rollout.noise={noise}")
    asked = []
    rollout = made.update.rollout.fn
    noisy = rollout._noisy
    rollout._noisy = lambda digest, level, draw: (
        asked.append((level, digest, noisy(digest, level, draw))) or asked[-1][2]
    )
    made.collect(0)
    copies = [copy for _, _, copy in asked]
    assert {level for level, _, _ in asked} == {0.3, 0.6, 0.9}
    alike = len(copies) - len({*copies})  # patches in the mean colour of an image of one colour
    assert alike == 0 if noise == "gaussian" else alike < len(copies) / 2


@pytest.mark.parametrize("preset", ["visurf", "calibrl"])
def test_a_demonstration_joins_the_answers_to_its_picture(tmp_path, begun, preset):
    made = trainer(tmp_path, begun, f"presets=[{preset}]", "rlvr.group_size=3")
    rows, _ = made.collect(0)
    groups = by_group(rows)
    assert len(groups) > 1
    for group in groups.values():
        prompts = {
            tuple(t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.PROMPT) for row in group
        }
        (prompt,) = prompts
        assert any(token >= FIRST_ID for token in prompt)
        (shown,) = [row for row in group if Role.TEACHER_FORCED in row.role]
        assert shown.correct and shown.text.startswith(made.by_uid[shown.uid].answer)
    made.run()
