"""The flow of RLFR: which states it reads, its loss, what it learns and from whom, and that a run resumes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import toys
from provider_toys import letter_context, letter_rows

from pipelines.contract.catalogue import bind
from pipelines.data import chat
from pipelines.papers.rlfr.flow import VelocityField, deviation


def flow(tmp_path, info=None, answers=("cd", "ef"), **settings):
    part = bind("rlvr.providers", {"kind": "flow_field", "blocks": 2, "offline_steps": 0, **settings}).fn
    part.setup(letter_context(tmp_path, list(answers), info=info))
    return part


def moved(part):
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in part.field.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return part


def states_of(policy, tokens, row, layers):
    """Outputs of blocks for every token of a row, from a pass over it alone."""
    heard = []
    hooks = [
        policy.layers[layer].register_forward_hook(
            lambda _, __, out: heard.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in layers
    ]
    with torch.no_grad():
        policy.decoder(input_ids=tokens[row : row + 1])
    for hook in hooks:
        hook.remove()
    return torch.stack([each.view(tokens.shape[1], -1) for each in heard], 1)


def step(texts=("klm", "", "no", "cdcd"), correct=(1.0, 0.0, 1.0, 0.0), prompt="ab"):
    tokens, columns = letter_rows(list(texts), [0, 1, 1, 0], prompt)
    return tokens, columns | {"correct": torch.tensor(correct)}


def test_each_token_is_read_at_itself_with_the_one_before_as_context(tmp_path):
    part = flow(tmp_path, depths=[0.25, 0.9])
    assert part.layers == (0, 1), "of two blocks: the first, and the last though 0.9 rounds to a third"
    tokens, columns = step()
    columns["mask"][3, 3] = False
    found = {
        int(p): (s, b)
        for place, states, before in part._states(tokens, columns["mask"])
        for p, s, b in zip(place, states, before, strict=True)
    }
    wanted = columns["mask"].flatten().nonzero().flatten().tolist()
    assert sorted(found) == wanted
    for place in wanted:
        row, token = divmod(place, tokens.shape[1])
        states = states_of(part.policy, tokens, row, part.layers)
        torch.testing.assert_close(found[place][0], states[token], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found[place][1], states[token - 1], atol=1e-4, rtol=1e-4)


def test_before_it_learns_the_deviation_is_that_of_standing_still(tmp_path):
    """A velocity of 0 is wrong by h - e; at t = 0.8 that counts four times. The noise is the row's and the token's own."""
    part = flow(tmp_path, depths=[0.5])
    tokens, columns = step()
    part.fill(tokens, columns)
    first = columns["velocity_deviation"]
    assert ((first > 0) == columns["mask"]).all()
    ((place, states, _),) = part._states(tokens, columns["mask"])
    noise = part._noise(place, tokens.shape[1], states, 3)
    wanted = 4 * (states - noise).square().mean(-1).mean(1)
    torch.testing.assert_close(first.flatten()[place], wanted, rtol=1e-4, atol=1e-4)
    part.fill(tokens, columns)
    torch.testing.assert_close(columns["velocity_deviation"], first)
    columns["step"] = 4
    part.fill(tokens, columns)
    assert (columns["velocity_deviation"] != first)[columns["mask"]].all()


def test_the_error_by_hand():
    """A field that always says 0, one token, one block: x does not matter, the error is the mean of (h - e)^2."""
    field = VelocityField(2, 1)
    h, e = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[0.0, 1.0]]])
    found = deviation(field, h, h, e, torch.tensor([0.8]), torch.tensor([0.5]))
    assert found.item() == pytest.approx((1 + 4) / 2)
    heard = []
    field.read.register_forward_hook(lambda _, inputs, __: heard.append(inputs[0]))
    deviation(field, h, h, e, torch.tensor([0.8]), torch.tensor([0.5]))
    torch.testing.assert_close(heard[0], torch.tensor([[0.8, 2.6]]))


def test_its_step_is_the_gradient_over_the_correct_rows_each_as_much(tmp_path):
    part = moved(flow(tmp_path, depths=[0.5, 0.75]))
    tokens, columns = step()
    slow = copy.deepcopy(part.field)
    losses = []
    for row in (0, 2):
        mask = torch.zeros_like(columns["mask"])
        mask[row] = columns["mask"][row]
        ((place, states, before),) = part._states(tokens, mask)
        noise = part._noise(place, tokens.shape[1], states, 3, "update")
        losses.append(deviation(slow, states, before, noise, torch.full((len(place),), 0.8), part.shares).mean())
    loss = sum(losses) / 2
    loss.backward()
    gradients = []
    part.optimizer.step = lambda: gradients.append([p.grad.clone() for p in part.field.parameters()])
    assert part.update(tokens, columns)["flow/loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    for fast, weight in zip(gradients[0], slow.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-5, rtol=1e-3)
    assert part.update(*step(correct=(0.0, 1.0, 0.0, 0.0))) == {}, "the only correct row has no token"


@pytest.mark.slow
def test_what_it_has_learned_deviates_less_than_what_it_has_not_seen(tmp_path):
    part = flow(tmp_path, learning_rate=0.003, depths=[0.5])
    good, other = step(("kl", "kl", "kl", "kl"), (1.0,) * 4), step(("po", "po", "po", "po"), (0.0,) * 4)
    shares = []
    for number in range(150):
        for _, columns in (good, other):
            columns["step"] = number
        if number in (0, 149):
            part.fill(*good)
            part.fill(*other)
            means = [c["velocity_deviation"][c["mask"]].mean() for _, c in (good, other)]
            shares.append(float(means[0] / means[1]))
        part.update(*good)
    assert shares[1] < 0.7 * shares[0]


@pytest.mark.slow
def test_the_offline_part_learns_from_solutions_once(tmp_path, monkeypatch):
    offered = []

    def rendered(tokenizer, prompts, tools):
        offered.extend(tools)
        return [[1, 2] for _ in prompts]

    monkeypatch.setattr(chat, "render_prompts", rendered)
    info = {1: {"solution": "kl", "tools": ["add"]}}
    part = flow(tmp_path, info=info, learning_rate=0.003, offline_steps=150, depths=[0.5])
    tokens, columns = step(("kl#", "kl#", "po#", "po#"), (0.0,) * 4)
    untaught = flow(tmp_path, offline_steps=150, depths=[0.5])
    ratios = []
    for each in (part, untaught):
        each.fill(tokens, columns)
        deviations = columns["velocity_deviation"]
        ratios.append(float(deviations[:2].sum() / deviations[2:].sum()))
    assert ratios[0] < 0.8 * ratios[1], "without a solution there is nothing to learn from"
    assert offered == [["add"]] * 150, "the prompts are those of rollouts"
    weights = copy.deepcopy(part.field.state_dict())
    part.fill(tokens, columns)
    assert all(torch.equal(weight, weights[name]) for name, weight in part.field.state_dict().items())


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bytes(tmp_path, start):
    runs = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()

        def build(name=name):
            learner = "rlvr.providers=[{kind: flow_field, blocks: 2, learning_rate: 0.001}]"
            more = ("rlvr.sampling.temperature=0.6", "rlvr.shaping=[{kind: rlfr, weight: 0.1}]")
            return toys.trainer(tmp_path / name, start, toys.recipe(tmp_path), "presets=[rlfr]", learner, *more)

        if name == "whole":
            build().run()
        else:
            toys.run_stopped(build, step=3)
        runs.append(toys.result(tmp_path / name / "work"))
    assert json.dumps(runs[0]) == json.dumps(runs[1])
    assert any("flow/loss" in values for _, values in runs[0][1])
