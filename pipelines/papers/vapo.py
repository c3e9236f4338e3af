"""VAPO: imitation of the policy's own correct answers.

Presets: vapo.
"""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2504.05118",
    title="VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks (positive-example language-model loss)",
    checked="third-party code (NeMo RL), 4 cases",
    batch_coupled=True,
)
def positive_nll(logp: PerToken, correct: PerRow, weight: PerToken) -> PerToken:
    """Minus the log-probability of correct rows, a mean over their tokens alone; `weight` is the paper's mu, 0.1 there.

        sum_t w_t l_t = -sum_{correct} w_t logp_t / sum_{correct} w_t

    w is the loss's weight of a token, so with `token_mean` all tokens of the update's correct rows count alike, however few these are. 0
    where no row is correct. For hard problems whose few correct answers would hardly count. NeMo RL calls a row correct whose reward is
    above 0; here the verifier says so.

    >>> import torch
    >>> w = torch.tensor([[0.25, 0.25], [0.5, 0.0]])
    >>> (w * positive_nll(torch.tensor([[-1.0, -2.0], [-4.0, 0.0]]), torch.tensor([1.0, 0.0]), w)).sum()
    tensor(1.5000)
    """
    counts = weight * (correct > 0)[:, None]
    return -logp * (correct > 0)[:, None] / counts.sum().clamp(min=1e-12)
