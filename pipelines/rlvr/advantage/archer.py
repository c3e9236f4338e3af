"""How much better a turn is than the state that it was taken in, by critics of whole turns."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops_turns import turns_to_tokens


@method(
    paper="2402.19446",
    title="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL (advantage of an utterance)",
    checked="official code (read)",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
)
def archer(turn_action_value: PerTurn, turn_value: PerTurn, turn: PerToken, mask: PerToken, scored: PerRow) -> PerToken:
    """Every token of turn k gets Q(s_k, a_k) - V(s_k), as the provider `archer` estimates both; no reward is read here.

    The released code's baseline of single tokens, which is off by default, is not here.

    >>> import torch
    >>> Q, V, k = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 0, 1]])
    >>> archer(Q, V, k, k >= 0, torch.ones(1).bool()).tolist()
    [[0.25, 0.25, -0.25]]
    """
    return turns_to_tokens(turn_action_value - turn_value, turn) * (mask & scored[:, None])
