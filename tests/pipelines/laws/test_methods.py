"""The laws of methods notice what is wrong: each method of a plug-in breaks the law that it was written against."""

from __future__ import annotations

import plugin_toys
import pytest

from pipelines.base import plugins
from pipelines.laws import attempt, methods, name_of

HEAD = """
import torch
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops import ratio


def part(**more):
    return method(paper="folklore", title="A part of a test", checked="closed form", **more)
"""
EXAMPLE = '''"""Something that a test computes, with an example.

    >>> 1 / 3
    0.33
    """'''
ADVANTAGE = """
@part()
def {name}(reward: PerRow, group: PerRow, scored: PerRow) -> PerRow:
    {doc}
    {body}


PARTS = {{"rlvr.advantage": {{"{name}": {name}}}}}
"""
OBJECTIVE = """
@part({card})
def {name}(logp: PerToken, logp_old: PerToken, advantage: PerToken, entropy: PerToken) -> PerToken:
    {doc}
    {body}


PARTS = {{"rlvr.objective": {{"{name}": {name}}}}}
"""
WEIGHTS = """
@part()
def {name}(mask: PerToken, in_loss: PerRow, loss_share: PerToken) -> PerToken:
    {doc}
    {body}


PARTS = {{"rlvr.loss_aggregation": {{"{name}": {name}}}}}
"""
SHAPING = """
@part()
class {name}(Method):
    {doc}

    def __init__(self):
        self.seen = 0

    def __call__(self, reward: PerRow, scored: PerRow) -> PerRow:
        self.seen += 1
        return reward / (1 + self.seen)

    def state_dict(self):
        return {{"seen": {kept}}}

    def load_state_dict(self, state):
        self.seen = {taken}


PARTS = {{"rlvr.shaping": {{"{name}": {name}}}}}
"""
GRPO = "return standardised(reward, group, scored).float()"
CASES = [
    (ADVANTAGE, GRPO, "", ""),
    (ADVANTAGE, "return standardised(reward, group, scored)[: -1].float()", "", "advantage-is-finite-and-has-its-shape"),
    (ADVANTAGE, "return standardised(reward, group, scored).double()", "", "advantage-is-finite-and-has-its-shape"),
    (ADVANTAGE, "return (standardised(reward, group, scored) / 0).float()", "", "advantage-is-finite-and-has-its-shape"),
    (ADVANTAGE, "return (standardised(reward, group, scored) * torch.arange(len(reward))).float()", "", "row-order-does-not-matter"),
    (ADVANTAGE, "return standardised(reward, torch.zeros_like(group), scored).float()", "", "groups-do-not-leak"),
    (ADVANTAGE, "return (reward * scored).float()", "", "group-of-one-has-nothing-to-compare-with"),
    (ADVANTAGE, "return standardised(reward, group, torch.ones_like(scored)).float()", "", "unscored-rows-stay-out"),
    (ADVANTAGE, "reward.sub_(1)\n    return standardised(reward, group, scored).float()", "", "inputs-are-left-alone"),
    (ADVANTAGE, "return undefined", "", "advantage-is-finite-and-has-its-shape"),
    (OBJECTIVE, "return -ratio(logp, logp_old) * advantage", "", ""),
    (OBJECTIVE, "return ratio(logp, logp_old) * advantage", "", "on-policy-gradient-is-reinforce"),
    (OBJECTIVE, "return -ratio(logp, logp_old).detach() * advantage * logp", "", "gradient-is-the-value-s-derivative"),
    (OBJECTIVE, "return -ratio(logp, logp_old).detach() * advantage * logp", "stops_gradient='the weight'", ""),
    (OBJECTIVE, "return -ratio(logp, logp_old) * advantage - (logp - logp_old) ** 2",
     "zero_gradient_at_zero_advantage=True", "silent-at-zero-advantage"),
    (OBJECTIVE, "return -ratio(logp, logp_old) * (advantage + 0 * advantage.shape[1] - advantage.mean() * 0) * (9 / advantage.shape[1])",
     "not_reinforce='of a test'", "padding-does-not-matter"),
    (WEIGHTS, "used = loss_share * (mask & in_loss[:, None])\n    return used / used.sum()", "", ""),
    (WEIGHTS, "return loss_share / loss_share.sum() - 0.001", "", "weights-are-not-negative-and-stay-on-the-mask"),
    (WEIGHTS, "return torch.ones_like(loss_share) / mask.sum()", "", "weights-are-not-negative-and-stay-on-the-mask"),
    (WEIGHTS, "return torch.zeros_like(loss_share)", "", "weights-are-not-negative-and-stay-on-the-mask"),
]  # fmt: skip


def broken(tmp_path, text: str) -> dict[str, str]:
    """Law → why it is broken, of the one method of a plug-in."""
    path = tmp_path / "plug.py"
    path.write_text(HEAD + text)
    with plugin_toys.forgotten():
        plugins.activate([str(path)])
        ((slot, name),) = [
            (s, n) for s, o in plugins.origins().items() for n, each in o.items() if each.plugin == str(path)
        ]
        outcomes = [*attempt(methods.laws_of(slot), methods.Subject(slot, name))]
    assert [each.law for each in outcomes] == [name_of(law) for law in methods.laws_of(slot)]
    assert all(each.states and (each.why or each.result == "holds") for each in outcomes)
    return {each.law: each.why for each in outcomes if each.result == "broken"}


@pytest.mark.parametrize(("text", "body", "card", "law"), CASES)
def test_a_fault_breaks_its_law(tmp_path, text, body, card, law):
    made = broken(tmp_path, text.format(name="of_a_test", doc=EXAMPLE, body=body, card=card))
    assert set(made) == set() if not law else law in made


@pytest.mark.parametrize(
    ("kept", "taken", "result"),
    [
        ("self.seen", "state['seen']", ""),
        ("self.seen", "0", "state-survives-json"),
        ("{self.seen}", "state['seen'].pop()", "state-survives-json"),
    ],
)
def test_a_state_that_is_lost_is_noticed(tmp_path, kept, taken, result):
    made = broken(tmp_path, SHAPING.format(name="of_a_test", doc=EXAMPLE, kept=kept, taken=taken))
    assert set(made) == ({result} if result else set())


@pytest.mark.parametrize(
    ("doc", "law", "why"),
    [
        ('"""Too short, >>> 1."""', "declares-itself", "does not say what it computes"),
        ('"""Long enough to say what it computes, without an example."""', "declares-itself", "no worked example"),
        (EXAMPLE.replace("0.33", "0.35"), "worked-example-is-right", "Expected: 0.35 Got: 0.333"),
        (EXAMPLE.replace("1 / 3", "1 / 0"), "worked-example-is-right", "ZeroDivisionError"),
    ],
)
def test_what_it_says_of_itself_is_read(tmp_path, doc, law, why):
    made = broken(tmp_path, ADVANTAGE.format(name="of_a_test", doc=doc, body=GRPO))
    assert set(made) == {law} and why in made[law]


def test_a_setting_without_a_default_is_named(tmp_path):
    text = ADVANTAGE.format(name="of_a_test", doc=EXAMPLE, body=GRPO).replace(
        "scored: PerRow)", "scored: PerRow, *, scale: float)"
    )
    made = broken(tmp_path, text)
    assert "scale" in made["declares-itself"]


def test_every_slot_has_laws_and_every_law_says_what_it_states():
    laws = {law for slot in methods.LAWS.values() for law in slot}
    assert all(law.__doc__ for law in laws) and len(laws) == len({name_of(law) for law in laws})
    assert methods.laws_of("sft.loss") == methods.LAWS[""]
