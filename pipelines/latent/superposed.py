"""Latent-GRPO (2604.27998): a place of a thought is a superposition of tokens, drawn with Gumbel noise and scored by its density.

Formulas are those of the official code (DJC-GO-SOLO/Latent-GRPO): `layers/sampler.py` of its SGLang for what is drawn,
`logprobs_from_logits_topk_gumbel` of verl/utils/torch_functional.py for the density, and for what is masked
`compute_latent_grpo_outcome_advantage_firstmask_best_*` of verl/trainer/ppo/core_algos.py and `update_policy` of
verl/workers/actor/dp_actor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import log_prob, stream_points
from pipelines.latent.policy import Answering, Drawn, LatentPolicy, Written, draw_tokens
from pipelines.latent.settings import SuperposedSettings
from pipelines.rlvr.ops import row_mean

LOW, HIGH = -1.5, 3.0
"""Gumbel noise is clamped to these, before the lower is taken off."""


def gumbel_noise(uniform: Tensor, *, scale: float, one_sided: bool) -> Tensor:
    """Gumbel noise between two bounds, float32 in the shape of `uniform`.

        g = clamp(-log(-log u), -1.5, 3),  one-sided: g + 1.5,  times scale

    Args:
        uniform: float32 in [0, 1).

    >>> gumbel_noise(torch.tensor([0.0, 0.5, 1 - 2**-24]), scale=1.0, one_sided=True).tolist()
    [0.0, 1.866513, 4.5]
    """
    noise = (-(-uniform.log()).log()).clamp(LOW, HIGH)
    return scale * (noise - LOW if one_sided else noise)


def superpose(logits: Tensor, noise: Tensor | float, top_p: float, count: int) -> tuple[Tensor, Tensor]:
    """The tokens of highest log-probability plus noise, highest first: ids, int64 [B, K], and those sums s, float32 [B, K].

    Candidates are the most probable tokens that have `top_p` of the mass together, and at least `count` of them.

    Args:
        logits: float32 [B, V], at temperature 1.
        noise: float32 [B, V].
        count: K.

    >>> ids, s = superpose(torch.tensor([[0.5, 0.2, 0.3]]).log(), torch.tensor([[0.0, 9.0, 1.0]]), 0.6, 2)
    >>> ids.tolist()  # token 1 is no candidate: the other two have 0.8
    [[2, 0]]
    """
    logp = logits.log_softmax(-1)
    ordered, order = logp.exp().sort(-1, descending=True)
    inside = ordered.cumsum(-1) - ordered < top_p
    inside[:, :count] = True
    candidates = torch.zeros_like(inside).scatter(-1, order, inside)
    scores, ids = (logp + noise).masked_fill(~candidates, float("-inf")).topk(count)
    return ids, scores


def gumbel_log_density(scores: Tensor, logp: Tensor, advantage: Tensor | None = None) -> Tensor:
    """Log-density of drawn sums, averaged over the tokens of a place, in nats, float32 [...].

        d = s - log p,  mean over tokens of  -d - exp(-d)

    That is the density of standard Gumbel noise around each log-probability. The noise that is drawn is clamped, moved by 1.5 where it is
    one-sided, and may be scaled, which this density leaves out, as the official code does: it is the measure of the ratio, not of the
    sampler. Noise that is never negative keeps the derivative by log p, 1 - exp(-d), from being negative: all tokens of a
    place are pushed the way that their advantage says.

    Where d < 0 and the advantage is not positive, the derivative by log p is that of d - exp(d) instead, which is between -1 and 0 where
    the other grows exponentially; the value stays.

    Args:
        scores, logp: float32 [..., K], s and the log-probabilities of the same tokens at temperature 1.
        advantage: float32 [...]; None leaves the derivative as it is.

    >>> round(gumbel_log_density(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0])).item(), 4)
    -1.1839
    """
    distance = scores - logp
    density = -distance - (-distance).exp()
    if advantage is not None:
        turned = (advantage[..., None] <= 0) & (distance < 0)
        below = distance.clamp(max=0)
        bounded = torch.where(turned, below - below.exp(), density)
        density = density.detach() + (bounded - bounded.detach())
    return density.mean(-1)


def first_of_the_best(advantage: Tensor, score: Tensor, size: int) -> Tensor:
    """bool [B], answers whose first place is trained: of a group with positive advantages the most probable of those, else all.

    Several correct answers that start in other ways would pull the first place towards a mean of them, which no answer started with.

    Args:
        advantage: float32 [B], groups side by side.
        score: float32 [B], the mean log-probability of an answer's places.

    >>> first_of_the_best(torch.tensor([1.0, 1.0, -2.0, 0.0, 0.0, 0.0]), torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.0, 0.0]), 3).tolist()
    [False, True, False, True, True, True]
    """
    positive = advantage.view(-1, size) > 0
    best = score.view(-1, size).masked_fill(~positive, float("-inf")).argmax(1, keepdim=True)
    chosen = torch.zeros_like(positive).scatter(1, best, True)
    return (chosen | ~positive.any(1, keepdim=True)).view(-1)


class Superposed(LatentPolicy):
    """A network whose thoughts are superpositions of tokens alone.

        s_v = log p_v + g_v over the candidates,  the K largest,  input = sum_k softmax(s / tau)_k E_k

    The token of a place is that of the largest s. A thought ends with the token `closing`, which is taken where it is the most probable or
    has the largest s; it and all after it are drawn and read as tokens. What is stored of a place are ids and s. Inputs are data:
    gradient reaches the network through the densities alone. With no noise (`greedy`) the K most probable tokens are superposed.

    Args:
        network, dtype: as in `LatentPolicy`.
        settings: of the superposition.
        closing: id of the first token of `answer_start`.
    """

    draws_whole = True

    def __init__(self, network: Any, settings: SuperposedSettings, closing: int, dtype: str = "float32") -> None:
        super().__init__(network, dtype)
        self.settings, self.closing = settings, closing
        self.count = min(settings.tokens, network.get_input_embeddings().num_embeddings)
        if settings.freeze_embeddings:
            for table in (network.get_input_embeddings(), network.get_output_embeddings()):
                table.weight.requires_grad_(False)

    @property
    def notes(self) -> int:
        """Ids, exact in float32, and s."""
        return 2 * self.count

    def draw(
        self, logits: Tensor, thinking: Tensor, sampling: Sampling, stream: Tensor, place: int, *, greedy: bool
    ) -> Drawn:
        """A superposition in thoughts, whose noise has values of the row's stream that no token has, and a token elsewhere."""
        token, logp = draw_tokens(logits, sampling, stream, place, greedy=greedy)
        notes = torch.zeros(len(logits), self.notes, device=logits.device)
        if not bool(thinking.any()):
            return Drawn(token, logp, notes)
        own, size = logits[thinking], logits.shape[-1]
        noise: Tensor | float = 0.0
        if not greedy:
            first = torch.full_like(stream[thinking], sampling.max_tokens + place * size)
            uniform = stream_points(stream[thinking], first, size)
            noise = gumbel_noise(uniform, scale=self.settings.noise, one_sided=self.settings.one_sided)
        ids, scores = superpose(own, noise, sampling.top_p, self.count)
        drawn = torch.where(own.argmax(-1) == self.closing, self.closing, ids[:, 0])
        density = gumbel_log_density(scores, own.log_softmax(-1).gather(-1, ids))
        closes = log_prob(own, drawn, sampling.model_copy(update={"temperature": 0.0}) if greedy else sampling)
        token[thinking], logp[thinking] = drawn, torch.where(drawn == self.closing, closes, density)
        notes[thinking] = torch.cat([ids.float(), scores], -1)
        return Drawn(token, logp, notes)

    def ended(self, answers: Sequence[list[int]], answering: Answering) -> list[bool]:
        """With the token `closing`."""
        return [answer[-1] == self.closing for answer in answers]

    def read(self, tokens: Tensor, latent: Tensor, notes: Tensor) -> tuple[Tensor, Tensor]:
        """The superpositions at latent places, and the largest weight of each, which is its token's."""
        table = self.network.get_input_embeddings()
        embedded = table(tokens).float().detach()
        share = torch.ones_like(latent, dtype=torch.float32)
        if not bool(latent.any()):
            return embedded, share
        ids, scores = notes[latent].split(self.count, -1)
        weights = (scores / self.settings.temperature).softmax(-1)
        superposed = (weights[..., None] * table(ids.long()).float().detach()).sum(-2)
        return embedded.index_put((latent,), superposed), share.index_put((latent,), weights[..., 0])

    def log_prob(self, logits: Tensor, written: Written, sampling: Sampling, advantage: Tensor | None = None) -> Tensor:
        """The density of superpositions, and the log-probability of tokens elsewhere."""
        ids, scores = written.notes.split(self.count, -1)
        logp = logits.log_softmax(-1).gather(-1, ids.long())
        density = gumbel_log_density(scores, logp, advantage)
        return torch.where(written.latent, density, log_prob(logits, written.tokens, sampling))

    def counts(self, finished: Tensor) -> Tensor:
        """All answers, or those that ended (`unfinished: excluded`)."""
        return finished if self.settings.unfinished == "excluded" else torch.ones_like(finished)

    def credit(self, advantage: Tensor, written: Written, finished: Tensor, size: int) -> Tensor:
        """None for answers that did not end, and for the first place of a group's answers that are not the most probable correct one."""
        credit = advantage[:, None].repeat(1, written.kept.shape[1])
        credit[:, 0] *= first_of_the_best(advantage, row_mean(written.logp, written.kept), size)
        return credit * finished[:, None]

    def reduced(self, losses: Tensor, kept: Tensor, every: Tensor) -> Tensor:
        """Averaged over all places of the update, masked ones too, as the official code has it."""
        return (losses * kept).sum() / every.sum().clamp(min=1)

    def reference(self, network: Any) -> Superposed:
        """It reads the same superpositions."""
        return Superposed(network, self.settings, self.closing, self.dtype)
