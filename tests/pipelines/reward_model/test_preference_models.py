"""What pairs of whole answers can tell of how people prefer: by partial return or by regret (Knox et al., 2206.02231; 2310.02456).

Answers are paths of a random tree of tokens with a reward for each token. A part of an answer has the partial return of its tokens; its
regret is what the best continuation of its first state is worth, less its partial return and what its last state is worth.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from pipelines.curate import segments
from pipelines.curate.segments import Transition
from pipelines.preference.loss.dpo import dpo
from pipelines.reward_model.loss.bradley_terry import bradley_terry

DEPTH, TOKENS, BETA = 3, (0, 1, 2), 0.7
Path = tuple[int, ...]
ANSWERS: list[Path] = list(product(TOKENS, repeat=DEPTH))


@pytest.fixture
def rewards() -> dict[Path, float]:
    """Reward of the last token of each path."""
    draw = random.Random(5)
    return {path: draw.uniform(-2, 2) for length in range(1, DEPTH + 1) for path in product(TOKENS, repeat=length)}


def partial_return(rewards: dict[Path, float], answer: Path, first: int = 0) -> float:
    return sum(rewards[answer[: place + 1]] for place in range(first, len(answer)))


def best_value(rewards: dict[Path, float], state: Path) -> float:
    if len(state) == DEPTH:
        return 0.0
    return max(rewards[(*state, token)] + best_value(rewards, (*state, token)) for token in TOKENS)


def regret(rewards: dict[Path, float], answer: Path, first: int = 0) -> float:
    reached = partial_return(rewards, answer, first) + best_value(rewards, answer)
    return best_value(rewards, answer[:first]) - reached


def loss(difference: float) -> float:
    return float(bradley_terry(torch.tensor([difference]), torch.zeros(1), torch.zeros(1)))


def test_whole_answers_to_one_prompt_are_preferred_alike_by_both(rewards):
    for chosen, rejected in product(ANSWERS, ANSWERS):
        by_return = partial_return(rewards, chosen) - partial_return(rewards, rejected)
        by_regret = regret(rewards, rejected) - regret(rewards, chosen)
        assert loss(by_return) == pytest.approx(loss(by_regret), abs=1e-6)


def test_parts_that_begin_or_end_in_different_states_are_not(rewards):
    opposite = 0
    for chosen, rejected in product(ANSWERS, ANSWERS):
        for first, last in ((1, DEPTH), (0, DEPTH - 1)):
            pair = [(answer[:last], first) for answer in (chosen, rejected)]
            returns, regrets = ([measure(rewards, *part) for part in pair] for measure in (partial_return, regret))
            opposite += (returns[0] - returns[1]) * (regrets[1] - regrets[0]) < -1e-9
    assert opposite > 50


def test_dpo_s_log_ratio_is_the_negative_regret_of_any_part(rewards):
    """Of the best policy under a KL to the reference, whose values are soft; so DPO's loss on parts is the regret model's."""
    draw = random.Random(6)
    reference = {}
    for state in [()] + [path for path in rewards if len(path) < DEPTH]:
        chances = [draw.uniform(0.1, 1) for _ in TOKENS]
        reference |= {(*state, token): chance / sum(chances) for token, chance in zip(TOKENS, chances, strict=True)}

    def value(state: Path) -> float:
        if len(state) == DEPTH:
            return 0.0
        nexts = [(*state, token) for token in TOKENS]
        terms = [torch.tensor(reference[n]).log() + (rewards[n] + value(n)) / BETA for n in nexts]
        return float(BETA * torch.stack(terms).logsumexp(0))

    def logps(answer: Path, first: int) -> tuple[float, float]:
        """Under the best policy, and under the reference."""
        best = under = 0.0
        for place in range(first, len(answer)):
            path = answer[: place + 1]
            log_reference = float(torch.tensor(reference[path]).log())
            best += log_reference + (rewards[path] + value(path) - value(path[:-1])) / BETA
            under += log_reference
        return best, under

    def soft_regret(answer: Path, first: int) -> float:
        return value(answer[:first]) - (partial_return(rewards, answer, first) + value(answer))

    for first, last in ((0, DEPTH), (1, DEPTH), (0, DEPTH - 1), (1, DEPTH - 1)):
        for chosen, rejected in zip(ANSWERS, ANSWERS[7:] + ANSWERS[:7], strict=True):
            both = [(answer[:last], first) for answer in (chosen, rejected)]
            columns = [torch.tensor([x]) for part in both for x in logps(*part)]
            ours = dpo(columns[0], columns[2], columns[1], columns[3], *[torch.ones(1)] * 3, beta=BETA)
            assert float(ours) == pytest.approx(loss(soft_regret(*both[1]) - soft_regret(*both[0])), abs=1e-4)


COIN, WALK = Transition("start", "coin", 1.0, None), Transition("start", "walk", 0.0, "bridge")
JUMP, SIT = Transition("bridge", "jump", 3.0, None), Transition("bridge", "sit", 2.0, None)
"""Values by hand: 3 at the bridge and, by walking there, at the start. Regrets: coin 2, walk 0, jump 0, sit 1."""


@pytest.mark.parametrize(
    ("worth", "policy", "paid"),
    [(lambda part: segments.partial_return(part, 1.0), ["coin"], 1), (lambda part: -lost(part), ["walk", "jump"], 3)],
    ids=["partial_return", "regret"],
)
def test_scores_of_turns_maximised_greedily_are_the_best_policy_by_regret_only(worth, policy, paid):
    """All pairs of one-turn parts, most of which begin in different states, and a score for each turn learned from them."""
    parts = [COIN, WALK, JUMP, SIT]
    scores = torch.zeros(len(parts), requires_grad=True)
    pairs = [(i, j) for i in range(4) for j in range(4) if worth([parts[i]]) > worth([parts[j]])]
    chosen, rejected = (torch.tensor(side) for side in zip(*pairs, strict=True))
    optimizer = torch.optim.SGD([scores], lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        bradley_terry(scores[chosen], scores[rejected], torch.zeros(len(pairs))).mean().backward()
        optimizer.step()
    score, state, ways = dict(zip(parts, scores.tolist(), strict=True)), "start", []
    while state is not None:
        ways.append(max((part for part in parts if part.state == state), key=lambda part: score[part]))
        state = ways[-1].next
    assert [way.message for way in ways] == policy and sum(way.reward for way in ways) == paid


def lost(part):
    return segments.regret(part, segments.action_values([COIN, WALK, JUMP, SIT], 1.0), 1.0)
