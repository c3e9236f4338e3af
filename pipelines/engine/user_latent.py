"""A reward that depends on a user: a latent inferred from a few of the user's pairs, and what it adds to an answer's score."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

BOUND = 1.0
"""Means and log-variances of the posterior stay within this distance of 0, as in the released code."""


class UserLatent(torch.nn.Module):
    """Encoder of pairs to a latent z, and the part of the reward that reads it (2408.10075).

    Each pair's two hidden states go through an MLP, the pairs attend to each other, their mean gives mean and log-variance. What the
    reward gains is MLP([h; z]) - MLP([h; 0]): without a user it gains nothing, so the linear head alone is what all users share.

    Args:
        width: of the decoder's hidden states.
        size: of z.
        hidden: of the MLPs.
        seed: of the initial weights.
    """

    def __init__(self, width: int, size: int, hidden: int, *, seed: int) -> None:
        super().__init__()
        self.size = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.pair = torch.nn.Sequential(
                torch.nn.Linear(2 * width, hidden), torch.nn.LeakyReLU(0.2), torch.nn.Linear(hidden, hidden)
            )
            self.query, self.key, self.content = (torch.nn.Linear(hidden, hidden) for _ in range(3))
            self.mean, self.log_variance = (torch.nn.Linear(hidden, size) for _ in range(2))
            self.reward = torch.nn.Sequential(
                torch.nn.Linear(width + size, hidden),
                torch.nn.LeakyReLU(0.2),
                torch.nn.Linear(hidden, 1, bias=False),
            )

    def posterior(self, context: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, float32 [U, size] each, within [-1, 1]; 0, the prior, for a user without pairs.

        The order of the pairs does not matter.

        Args:
            context: hidden states of the chosen and the rejected answers, float32 [U, N, 2, width].
            present: which pairs there are, bool [U, N].
        """
        some = present.any(1, keepdim=True)
        read = present | ~some  # softmax of a row needs an entry
        pairs = self.pair(context.flatten(2))
        attention = self.query(pairs) @ self.key(pairs).transpose(1, 2) / pairs.shape[-1] ** 0.5
        shares = attention.masked_fill(~read[:, None, :], float("-inf")).softmax(-1)
        attended = shares @ self.content(pairs)
        pooled = (attended * read[..., None]).sum(1) / read.sum(1, keepdim=True)
        mean, log_variance = (head(pooled).clamp(-BOUND, BOUND) * some for head in (self.mean, self.log_variance))
        return mean, log_variance

    def gain(self, hidden: Tensor, z: Tensor) -> Tensor:
        """What the users' latents add to the rewards, float32 [M].

        Args:
            hidden: of the answers, float32 [M, width].
            z: float32 [M, size].
        """
        both = torch.stack([z, torch.zeros_like(z)])
        with_user, without = self.reward(torch.cat([hidden.expand(2, *hidden.shape), both], -1))[..., 0]
        return with_user - without


def draw(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """z = mean + exp(log_variance / 2) noise, scaled to length sqrt(size); 0 where all of it is 0.

    >>> mean, log_variance = torch.tensor([0.3, -0.5, 0.2, 1.0]), torch.tensor([-0.2, 0.4, 0.0, -1.0])
    >>> z = draw(mean, log_variance, torch.tensor([0.5, -1.0, 0.2, 0.1]))
    >>> z, kl(mean, log_variance)
    (tensor([ 0.6858, -1.5691,  0.3646,  0.9668]), tensor(0.9292))
    """
    z = mean + (log_variance / 2).exp() * noise
    return z * (z.shape[-1] ** 0.5 / z.norm(dim=-1, keepdim=True).clamp(min=1e-12))


def kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, exp(log_variance)) || N(0, 1)) in nats, summed over the last dimension."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)


def save(latent: UserLatent, latents: Tensor, path: Path) -> None:
    """Write the module, and the latents [U, size] of the users that it was trained on."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in latent.state_dict().items()}
    save_file({**state, "latents": latents.contiguous()}, path)


def load(path: Path) -> tuple[UserLatent, Tensor]:
    """What `save` wrote."""
    from safetensors.torch import load_file

    state = load_file(path)
    latents = state.pop("latents")
    size, hidden = state["mean.weight"].shape
    latent = UserLatent(state["pair.0.weight"].shape[1] // 2, size, hidden, seed=0)
    latent.load_state_dict(state)
    return latent.requires_grad_(False), latents
