"""The discriminator of internally rewarded RL: what it reads, what it is fitted to, and that it learns to tell targets apart."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import toys
from provider_toys import LETTERS, letter_context, letter_rows

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind

TARGETS = ["x", "y", "x", "z"]


def discriminator(tmp_path, targets=TARGETS, **settings):
    part = bind("rlvr.providers", {"kind": "target_discriminator", **settings}).fn
    info = {number: {"topic": target} for number, target in enumerate(targets)}
    part.setup(letter_context(tmp_path, targets, info=info))
    return part


def probabilities(network, reading, target):
    """The network's output at the last token of a reading, from a pass over it alone."""
    hidden = network.body(input_ids=torch.tensor([reading])).last_hidden_state[0, -1]
    return network.head(hidden).log_softmax(-1)[target]


def moved(part):
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in part.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return part


def test_before_it_learns_nothing_is_told(tmp_path):
    part = discriminator(tmp_path)
    tokens, columns = letter_rows(["cd", "efg", ""], [0, 1, 3])
    part.fill(tokens, columns)
    torch.testing.assert_close(columns["target_prior"], torch.full((3,), 1 / 3))
    torch.testing.assert_close(columns["target_probability"], torch.full((3,), 1 / 3))
    part = discriminator(tmp_path, prevalence="frequency")
    part.fill(tokens, columns)
    assert columns["target_prior"][:2].tolist() == [0.5, 0.25], "x is the target of two records of four"


@pytest.mark.parametrize(("until", "read"), [(None, ["cd=e", "fg", "h=ij=k"]), ("=", ["cd", "", "h"])])
def test_it_reads_the_completion_alone_up_to_the_mark(tmp_path, until, read):
    """Another prompt changes nothing; what follows the first mark changes nothing; a row without the mark is not read at all."""
    part = moved(discriminator(tmp_path, until=until))
    found = []
    for prompt in ("ab", "mno"):
        tokens, columns = letter_rows(["cd=e", "fg", "h=ij=k"], [0, 1, 3], prompt)
        part.fill(tokens, columns)
        found.append(columns["target_probability"])
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    for value, text, target in zip(found[0], read, [0, 1, 2], strict=True):
        reading = [18, *(LETTERS.index(letter) for letter in text)]
        assert float(value) == pytest.approx(probabilities(part.network, reading, target).exp().item(), rel=1e-4)


def test_its_step_is_the_gradient_of_the_cross_entropy(tmp_path):
    """Rows that nobody scored, and rows of another split's problems, teach nothing."""
    part = moved(discriminator(tmp_path))
    tokens, columns = letter_rows(["cd", "", "efg", "cd", "c"], [0, 0, 3, 1, 77])
    slow = copy.deepcopy(part.network)
    readings = [([18, 3, 4], 0), ([18, 5, 6, 7], 2), ([18, 3, 4], 1)]
    loss = -sum(probabilities(slow, reading, target) for reading, target in readings) / 3
    loss.backward()
    gradients = []
    part.optimizer.step = lambda: gradients.append([p.grad.clone() for p in part.network.parameters()])
    part.fill(tokens, columns)
    metrics = part.update(tokens, columns)
    assert metrics["discriminator/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    mean = sum(float(probabilities(slow, *each).detach().exp()) for each in readings) / 3
    assert metrics["discriminator/target_probability"] == pytest.approx(mean, rel=1e-5)
    for fast, weight in zip(gradients[0], slow.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-6, rtol=1e-3)


def test_it_learns_to_tell_targets_apart(tmp_path):
    """Completions that name their targets are paid, those of a policy that writes the same for all are not."""
    part = discriminator(tmp_path, learning_rate=0.01, target="topic")
    telling = letter_rows(["cd", "ef", "cd", "gh"], [0, 1, 2, 3])
    for _ in range(30):
        part.fill(*telling)
        part.update(*telling)
    assert (telling[1]["target_probability"] > 0.9).all()
    part = discriminator(tmp_path, learning_rate=0.01, target="topic")
    silent = letter_rows(["cd"] * 4, [0, 1, 2, 3])
    for _ in range(30):
        part.fill(*silent)
        part.update(*silent)
    assert (silent[1]["target_probability"] < 0.6).all(), "of the same text, at most the share of its target"


def test_without_a_row_to_read_it_learns_nothing(tmp_path):
    part = discriminator(tmp_path)
    before = copy.deepcopy(part.network.state_dict())
    tokens, columns = letter_rows(["", ""], [0, 1], prompt="abc")
    part.fill(tokens, columns)
    assert part.update(tokens, columns) == {}
    assert torch.equal(columns["target_probability"], columns["target_prior"])
    assert all(torch.equal(weight, before[name]) for name, weight in part.network.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "targets", "words"),
    [
        ({"target": "colour"}, TARGETS, "predicts the field colour, and 4 of 4 records have none"),
        ({}, ["x", "x"], "nothing to tell apart: all records of the split have the same answer"),
    ],
)
def test_records_that_it_cannot_learn_from_are_refused(tmp_path, settings, targets, words):
    with pytest.raises(RecipeError, match=words):
        discriminator(tmp_path, targets, **settings)


def test_a_run_resumes_to_the_same_bytes_and_the_verifier_pays_nothing(tmp_path, start):
    runs = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()

        def build(name=name):
            learner = "rlvr.providers=[{kind: target_discriminator, learning_rate: 0.01}]"
            return toys.trainer(tmp_path / name, start, toys.recipe(tmp_path), "presets=[irrl]", learner)

        if name == "whole":
            build().run()
        else:
            toys.run_stopped(build)
        runs.append(toys.result(tmp_path / name / "work"))
    assert json.dumps(runs[0]) == json.dumps(runs[1])
    steps = [values for _, values in runs[0][1]]
    losses = [values["discriminator/loss"] for values in steps]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert abs(steps[0]["reward/shaped_mean"]) < 1e-6 < steps[-1]["reward/shaped_mean"]
