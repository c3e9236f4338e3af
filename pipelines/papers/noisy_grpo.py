"""NoisyGRPO: Incentivizing Multimodal CoT Reasoning via Noise Injection and Bayesian Estimation.

arXiv 2510.21122. Presets: noisy_grpo_images, noisy_grpo. Parts: noisy_images, noisy (rollout), noisy_grpo (advantage).

Rollouts of one problem sampled from prompts that are corrupted to different degrees.

Reward and the order of noise levels, fused by how much the reward tells apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase
from pipelines.contract.method import Rollout
from pipelines.data.marks import FIRST_ID
from pipelines.papers.common.masked_text import Unit, context_of, masked, with_text
from pipelines.rlvr.common.answers import answers, teacher_forced
from pipelines.rlvr.ops import group_std, standardised

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Message, Problem, Trajectory

COLUMNS = {
    "noise": Column(
        "B",
        "float32",
        Phase.FILTER,
        "a rollout with corrupted prompts",
        "How much of the prompt was corrupted when the row was drawn, from 0 to 1.",
        row=lambda t: t.extras.get("noise", 0.0),
        part=True,
        hint="Corrupt the prompts: rollout: noisy, or noisy_images.",
    ),
}


GRID = 8
"""Rows and columns of cells that `patches` covers."""
Levels = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=64)]


class _Levels(Rollout):
    """Rollouts of a problem from prompts that are corrupted to several levels, and trained after the prompt as it is.

    Attributes:
        levels: of the rollouts of a problem, in turn.
        last: share of them that is left at the end of the run.
    """

    levels: list[float]
    last: float

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, each group in the order of its levels."""
        levels = [level * (1 - (1 - self.last) * context.progress) for level in self.levels]
        drawn = [
            (request, levels[i % len(levels)] if self.corruptible(request) else 0.0)
            for request in requests
            for i in range(request.rollouts)
        ]
        prompts = iter(self.corrupted([(request, level) for request, level in drawn if level > 0], context))
        asked = [
            replace(request, rollouts=1, prompt=next(prompts) if level > 0 else request.prompt)
            for request, level in drawn
        ]
        rows = answers(asked, context)
        return [
            _after_clean_prompt(request, len(own.prompt), level, row, context) if level > 0 else row
            for (request, level), own, row in zip(drawn, asked, rows, strict=True)
        ]

    def corruptible(self, request: RolloutRequest) -> bool:
        """Whether there is anything in the prompt that may be corrupted."""
        raise NotImplementedError

    def corrupted(self, drawn: list[tuple[RolloutRequest, float]], context: RolloutContext) -> list[list[int]]:
        """Token ids of the prompts at their levels."""
        raise NotImplementedError


@method(
    paper="2510.21122",
    title="NoisyGRPO: Incentivizing Multimodal CoT Reasoning via Noise Injection and Bayesian Estimation (its rollouts)",
    checked="official code, patches of one image to the byte, noise to its rounding",
    makes=("teacher_forced", "noise"),
    forces_rows=True,
    requires=(("prompting", "plain"),),
    reduces_to="levels [0] is single_turn",
)
class noisy_images(_Levels):
    """The i-th rollout of a problem is drawn with noise `levels[i mod n]` over all images of its prompt.

    `gaussian`: int(1000 level) steps of a diffusion process of 1,000 steps. `patches`: of a grid of 8 x 8 cells int(64 level) have the
    image's mean colour. Level 0 is the image as it is; the released code adds noise with a deviation of 0.005 there, and lets values
    beyond black and white wrap around, which here become black and white. A problem without images is asked as it is, with noise 0.

    Rows train after the prompt as it is, and levels may fall over the run (`last`), as in `noisy`.
    """

    def __init__(
        self,
        *,
        levels: Levels = [0.0, 0.3, 0.6, 0.9],  # noqa: B006
        noise: Literal["gaussian", "patches"] = "gaussian",
        last: Annotated[float, Field(ge=0, le=1)] = 1.0,
    ) -> None:
        self.levels, self.noise, self.last = levels, noise, last

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, each group in the order of its levels."""
        from pipelines.data.images import IMAGES  # most data have none

        with IMAGES.passing():
            return super().run(requests, context)

    def corruptible(self, request: RolloutRequest) -> bool:
        """Whether the prompt has images."""
        return max(request.prompt, default=0) >= FIRST_ID

    def corrupted(self, drawn: list[tuple[RolloutRequest, float]], context: RolloutContext) -> list[list[int]]:
        """Token ids of the prompts with other images."""
        from pipelines.data.images import IMAGES

        prompts = []
        for request, level in drawn:
            draw = torch.Generator().manual_seed(context.streams.integer(request.group))
            prompts.append(IMAGES.exchanged(request.prompt, partial(self._noisy, level=level, draw=draw)))
        return prompts

    def _noisy(self, digest: str, level: float, draw: torch.Generator) -> str:
        """Digest of an image's noisy copy."""
        from pipelines.data.images import IMAGES
        from pipelines.data.marks import marked
        from pipelines.papers.common import spoiled_images

        image = IMAGES.image(digest)
        if self.noise == "patches":
            cells = torch.randperm(GRID * GRID, generator=draw)[: int(GRID * GRID * level)].tolist()
            return marked(IMAGES.add(spoiled_images.mean_patches(image, GRID, cells)))[0]
        step = min(int(level * spoiled_images.STEPS), spoiled_images.STEPS - 1)
        noise = torch.randn(image.height, image.width, 3, generator=draw)
        return marked(IMAGES.add(spoiled_images.noised(image, step, noise)))[0]


@method(
    paper="2510.21122",
    title="NoisyGRPO: Incentivizing Multimodal CoT Reasoning via Noise Injection and Bayesian Estimation (its rollouts, on text)",
    checked="reconstructed (official code read, which adds Gaussian noise to images or masks patches of them; masking text is ours)",
    makes=("teacher_forced", "noise"),
    forces_rows=True,
    requires=(("prompting", "plain"),),
    reduces_to="levels [0] is single_turn",
)
class noisy(_Levels):
    """The i-th rollout of a problem is drawn with noise `levels[i mod n]`: that share of its prompt's units, on average, is masked.

    The masked text is the record's `info` field named `field` (dots address nested ones) where it occurs in the prompt, as the paper
    corrupts the image and not the question; without `field` it is the whole last user message. Each `unit` is replaced by `mark` with the
    level's probability, independently for each rollout. A problem without that field is asked as it is, with noise 0.

    Over the run all levels decrease linearly to `last` times their first value; the code's schedule, which its released scripts leave off,
    is `last: 0.5`.

    Every row trains after the prompt as it is, as in the released code: a row sampled from another one is teacher-forced, its old
    log-probabilities are the trainer's own, and the ratio does not correct for what the noise changed. The column `noise` holds the step's
    level, for `advantage: noisy_grpo`. Not implemented: dropping noisy rows that beat the clean one, which is off in the released scripts
    too.
    """

    info_fields: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(
        self,
        *,
        levels: Levels = [0.0, 0.3, 0.6, 0.9],  # noqa: B006
        field: Annotated[str, Field(min_length=1, max_length=200)] | None = None,
        unit: Unit = "word",
        mark: Annotated[str, Field(max_length=100)] = "_",
        last: Annotated[float, Field(ge=0, le=1)] = 1.0,
    ) -> None:
        self.levels, self.field, self.unit, self.mark, self.last = levels, field, unit, mark, last

    def corruptible(self, request: RolloutRequest) -> bool:
        """Whether the prompt has the text."""
        return bool(self._text(request.problem))

    def corrupted(self, drawn: list[tuple[RolloutRequest, float]], context: RolloutContext) -> list[list[int]]:
        """Token ids of the prompts with masked texts."""
        if not drawn:
            return []
        messages = [self._corrupted(request, level, context) for request, level in drawn]
        return context.render(messages, [request.problem.tools for request, _ in drawn])

    def _text(self, problem: Problem) -> str | None:
        """What is masked."""
        if self.field is not None:
            return context_of(problem, self.field)
        return next((m["content"] for m in reversed(problem.prompt) if m["role"] == "user"), None)

    def _corrupted(self, request: RolloutRequest, level: float, context: RolloutContext) -> list[Message]:
        text = self._text(request.problem) or ""
        streams, group = context.streams, request.group
        return with_text(
            request.problem, text, masked(text, self.unit, lambda: streams.uniform(group) < level, self.mark)
        )


def _after_clean_prompt(
    request: RolloutRequest, start: int, level: float, row: Trajectory, context: RolloutContext
) -> Trajectory:
    """The completion that begins at `start` of the row, after the problem's own prompt."""
    clean = teacher_forced(request, request.prompt, row.tokens[start:], row.stop, context, drawn_elsewhere=True)
    clean.extras = {"noise": level}
    return clean


@method(
    paper="2510.21122",
    title="NoisyGRPO: Incentivizing Multimodal CoT Reasoning via Noise Injection and Bayesian Estimation (its advantage)",
    checked="official code, 5 cases",
    couples="group",
    zero_variance_groups="learns",
    reduces_to="with equal noise in a group it is grpo, scaled alike",
)
def noisy_grpo(
    reward: PerRow,
    noise: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    alpha: Annotated[float, Field(gt=0)] = 0.01,
    variance: Annotated[float, Field(ge=0)] = 0.1,
    eps: Annotated[float, Field(gt=0)] = 1e-4,
) -> PerRow:
    """z-scores of the reward, corrected by the order of the noise: a cleaner prompt should give the better answer.

        P = alpha / (std(r)^2 + alpha);   K = P / (variance + P);   x = z(r) + K (z(1 - noise) - z(r));   A = z(x)

    z subtracts the group's mean and divides by its deviation (ddof 1) plus eps. The reward's is the estimate, of variance P, and the
    noise's the observation, of `variance`: the less the rewards of a group differ, the more the noise decides. Where they are all equal, K
    is 1 / (1 + variance) and A the order of the noise alone; so do not use a filter that drops such groups. `alpha` 0.01 is that of the
    released scripts, 0.1 their code's default. The rows come from `rollout: noisy_images` or `noisy`.

    >>> import torch
    >>> g, yes, noise = torch.zeros(4).long(), torch.ones(4).bool(), torch.tensor([0.0, 0.3, 0.6, 0.9])
    >>> [round(v, 5) for v in noisy_grpo(torch.tensor([1.0, 0, 1, 0]), noise, g, yes).tolist()]
    [1.03828, -0.64933, 0.64933, -1.03828]
    >>> [round(v, 5) for v in noisy_grpo(torch.zeros(4), noise, g, yes).tolist()]
    [1.16177, 0.38726, -0.38726, -1.16177]
    """
    uncertainty = alpha / (group_std(reward, group, scored) ** 2 + alpha)
    gain = uncertainty / (variance + uncertainty)
    own = standardised(reward, group, scored, eps=eps)
    expected = standardised(1 - noise.double(), group, scored, eps=eps)
    return standardised(own + gain * (expected - own), group, scored, eps=eps).float()
