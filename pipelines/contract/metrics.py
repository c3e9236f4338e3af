"""The table of metrics: what a stage reports of each step, by name. Monitors may read what stands here; recipes are checked by it.

Names that end in `*` stand for a family. `pipelines/monitor` adds what its rules make, providers what they learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """One line of the table."""

    description: str
    when: Callable[[Any], bool] | None = None
    """It is measured only where the recipe's section says so."""
    hint: str = ""
    """What to add to the recipe where it is not."""
    column: str = ""
    """The column of rollouts that it is made from, where that exists only if something asks for it."""
    better: Literal["higher", "lower"] | None = None
    """What a better model has of it, where it ranks models that were trained in the same way."""
    outcome: str = ""
    """What it is called in the line that says what a stage has achieved, in the table's order; with ` %` at its end, a share."""


def _with_provider(*names: str) -> Callable[[Any], bool]:
    return lambda section: any(part.get("kind") in names for part in section.providers)


def _tries_out(section: Any) -> bool:
    from pipelines.contract.catalogue import load

    return load("rlvr.curriculum", section.curriculum["kind"]).tries_out  # type: ignore[attr-defined]


def _divides(section: Any) -> bool:
    from pipelines.contract.catalogue import load
    from pipelines.contract.method import Method

    objective = load("rlvr.objective", section.objective["kind"])
    return getattr(objective, "divisor_loss", Method.divisor_loss) is not Method.divisor_loss


TRIES = "Use a curriculum that tries problems out, such as curriculum: self_curation."
OPTIMIZER = {
    "optimizer/grad_norm": Metric("Norm of the gradient before clipping, of the step's last update."),
    "optimizer/learning_rate": Metric("Of the step's last update."),
    "optimizer/skipped_steps": Metric("Updates left out so far because the gradient was not finite."),
}
RLVR = {
    "reward/mean": Metric("Mean score of the step's rollouts.", better="higher", outcome="reward"),
    "reward/correct": Metric("Share that the problem's own verifier calls correct.", better="higher", outcome="correct %"),
    "reward/group_std": Metric("Standard deviation of the scores inside a group, mean over groups."),
    "reward/equal_share": Metric("Share of the scored rollouts whose group has no difference in reward, before any filter; where all "
                                 "groups have one rollout, the step counts as a group."),
    "reward/player_*": Metric("Mean score of a seat, where games are played from several."),
    "reward/against_*": Metric("Mean score against an opponent of `rollout.opponents`, by its name, in the steps that drew it."),
    "reward/won_against_*": Metric("Share of the games against it that the policy won."),
    "reward/unscored_share": Metric("Share of rollouts without a score."),
    "reward/shaped_mean": Metric("Mean score after shaping."),
    "method/*": Metric("What a method shows of the step, by its name, such as `method/airs/arm`. `changed_share` of a shaping part is the "
                       "share of scored rows (turns, tokens, where it pays these) whose reward it changed, of a credit part the share of "
                       "tokens whose advantage or share of the loss it changed."),
    "reward_component/*": Metric("Mean of a part of the reward: a reward function's name, `verifier`, ..."),
    "reward_component_std/*": Metric("Standard deviation of that part inside a group, mean over groups: what each reward tells apart."),
    "source/*": Metric("Of a source, where the split has several: `share` of the step's rollouts, `token_share` of its sampled tokens, "
                       "`reward_mean`, `correct`, `length_mean`, `truncated_share`."),
    "status/*": Metric("Share of rollouts with a verifier's status: correct, incorrect, unparsable, timed_out, ..."),
    "rollout/rows": Metric("Rollouts sampled."),
    "rollout/length_mean": Metric("Tokens that the policy chose, mean over rollouts.", outcome="tokens an answer"),
    "rollout/length_max": Metric("The longest of them."),
    "rollout/truncated_share": Metric("Share that ended at the token limit.", outcome="cut %"),
    "rollout/entropy": Metric("Mean -log-probability of the tokens that the policy drew, nats: an estimate of its entropy on every step, "
                              "also on one that trains on nothing.", outcome="entropy"),
    "rollout/error_share": Metric("Share lost to the infrastructure."),
    "rollout/tokens_per_s": Metric("Speed of decoding."),
    "tried/rows": Metric("Rollouts that the curriculum tried out, none of them trained.", when=_tries_out, hint=TRIES),
    "tried/tokens": Metric("Their tokens.", when=_tries_out, hint=TRIES),
    "tried/correct": Metric("Share of them that is correct.", when=_tries_out, hint=TRIES),
    "signal/zero_variance_group_share": Metric("Share of rows in groups without a difference in reward."),
    "signal/changed_share": Metric("Largest `changed_share` of the step's shaping and credit parts; above 0 more than the reward pays."),
    "signal/zero_advantage_row_share": Metric("Share of rows without advantage."),
    "signal/zero_advantage_token_share": Metric("Share of tokens without advantage."),
    "advantage/abs_mean": Metric("Mean size of a token's advantage."),
    "tokens/trained": Metric("Tokens in the loss."),
    "tokens/sampled_so_far": Metric("Completion tokens since the start."),
    "replay/rows": Metric("Stored rows that the step trained on."),
    "policy/entropy": Metric("Mean entropy of the policy at the trained tokens, nats."),
    "policy/kl_to_reference": Metric(
        "k3 estimate of KL(policy || reference), nats a token.", column="logp_ref",
        hint="Add divergence: {kind: k3, weight: 0}, or the monitor kl_budget, which brings the reference.",
    ),
    "ratio/min": Metric("Smallest importance ratio of the step."),
    "ratio/mean": Metric("Mean importance ratio of the step."),
    "ratio/max": Metric("Largest importance ratio of the step."),
    "mismatch/max": Metric("Largest sampler-trainer difference of a log-prob, nats."),
    "mismatch/p999": Metric("Its 99.9th percentile."),
    "mismatch/mean": Metric("Its mean."),
    "mismatch/kl": Metric("k3 estimate of KL(sampler || trainer), nats a token."),
    "mismatch/ess": Metric("Effective sample size of the importance weights, as a share."),
    "staleness/*": Metric("How far the weights that sampled are behind those that train.",
                          when=lambda rlvr: rlvr.staleness > 0, hint="Set staleness."),
    "window/*": Metric("Ages, in optimizer updates, of the tokens of rows that are drawn in windows, and rows that go on.",
                       when=lambda rlvr: rlvr.window is not None, hint="Set window."),
    "logged/*": Metric("Mean of a number that a reward function logged."),
    "loss/policy": Metric("Loss of the step."),
    "optimizer/clipping_bias": Metric("Norm of the gradient that clipping discards, of the step's last update.",
                                      when=_divides, hint="Use an objective with a divisor, such as st_ppo."),
    "layout/computed_share": Metric("Share of the rows' tokens that the forward pass computes."),
    "layout/padding_share": Metric("Padding in it."),
    "layout/tokens": Metric("Tokens in it."),
    "critic/*": Metric("Of the critic.", when=_with_provider("critic"), hint="Add providers: [critic]."),
    "archer/*": Metric("Of the critics of whole turns.", when=_with_provider("archer"), hint="Add providers: [archer]."),
    "digirl/*": Metric("Of the critics that classify.", when=_with_provider("digirl"), hint="Add providers: [digirl]."),
    "prm/*": Metric("Of the process reward model.", when=_with_provider("implicit_prm", "trajectory_prm"),
                     hint="Add providers: [implicit_prm] or [trajectory_prm]."),
    "step_values/*": Metric("Of the critics of turns that are fitted by Bellman backups.", when=_with_provider("iql", "f_dvl"),
                            hint="Add providers: [iql]."),
    "discriminator/*": Metric("Of the discriminator.", when=_with_provider("target_discriminator", "demonstration_discriminator"),
                              hint="Add providers: [target_discriminator] or [demonstration_discriminator]."),
    "self_teacher/*": Metric("Shares of the rows that were told a solution, and that got too long with it.",
                             when=_with_provider("self_teacher", "self_teacher_top"), hint="Add providers: [self_teacher]."),
    "aligned_teacher/*": Metric("Of the alignment.", when=_with_provider("aligned_teacher", "aligned_teacher_top"),
                                hint="Add providers: [aligned_teacher]."),
    "partition/*": Metric("Of the network that learns log Z.", when=_with_provider("partition"), hint="Add providers: [partition]."),
    "progress/*": Metric("Of the progress model.", when=_with_provider("progress"), hint="Add providers: [progress]."),
    "flow/*": Metric("Of the flow over hidden states.", when=_with_provider("flow_field"), hint="Add providers: [flow_field]."),
    "server/*": Metric("Of the decoding server.", when=lambda rlvr: rlvr.sampler is not None, hint="Set sampler."),
    "train/tokens_per_s": Metric("Speed of training."),
    "ranks/received_bytes": Metric("Of several ranks, bytes of rows, columns and metrics that one was given by others, mean over them; "
                                   "weights and gradients are not counted.", when=lambda rlvr: rlvr.processes > 1, hint="Set processes."),
    "time/*": Metric("Seconds of a part of the step, or a share of them; no two runs have the same. `time/rollout_idle_share`: of the "
                     "rollouts' time, the share in which the sampler had nothing to decode (`rollout: {asynchronous: true}`)."),
    "monitor/alarms": Metric("Alarms so far."),
    **OPTIMIZER,
}  # fmt: skip
SPEED = {
    "tokens/per_s": Metric("Speed of training."),
    "time/step_s": Metric("Seconds of the step."),
    "monitor/alarms": Metric("Alarms so far."),
    **OPTIMIZER,
}
FIXED_DATA = {
    "loss/train": Metric("Loss of the step.", outcome="loss"),
    "loss/heldout": Metric("Loss of the held-out rows, every `evaluate_every` steps.", outcome="held-out loss",
                           when=lambda section: section.heldout is not None, hint="Name a heldout split."),
    **SPEED,
}  # fmt: skip
"""Of a kind of stage that trains on fixed data and has no table of its own."""
SFT = {
    "loss/train": Metric("Nats per trained token of the step.", better="lower", outcome="loss"),
    "loss/heldout": Metric("Nats per token of the held-out rows, every `evaluate_every` steps.", better="lower", outcome="held-out loss",
                           when=lambda sft: sft.heldout is not None, hint="Name a heldout split."),
    "tokens/trained": Metric("Tokens in the loss."),
    "tokens/padding_share": Metric("Padding in the forward pass."),
    **SPEED,
}  # fmt: skip
REWARD_MODEL = {
    "loss/train": Metric("Loss of the step's pairs, or labelled steps.", outcome="loss"),
    "accuracy/train": Metric("Share of the step's pairs whose chosen answer scores higher, a tie counts half; of labelled steps, share on "
                             "their side of a half.", outcome="accuracy %"),
    "reward/mean": Metric("Mean score of the step's answers, or labelled steps."),
    "reward/margin": Metric("Mean difference of a pair's scores.", when=lambda section: section.step_labels is None,
                            hint="Labelled steps have none."),
    "loss/heldout": Metric("Loss of the held-out pairs or labelled steps, every `evaluate_every` steps.", outcome="held-out loss",
                           when=lambda section: section.heldout is not None, hint="Name a heldout split."),
    "accuracy/heldout": Metric("Share of the held-out pairs whose chosen answer scores higher, or of labelled steps on their side.",
                               outcome="held-out accuracy %",
                               when=lambda section: section.heldout is not None, hint="Name a heldout split."),
    "heldout/*": Metric("Of the card: brier, ece, length_correlation, std_within_prompt, first_error_f1, ...",
                        when=lambda section: section.heldout is not None, hint="Name a heldout split."),
    **SPEED,
}  # fmt: skip
OF_PAIRS = "Of pairs; a loss that reads labels has none."
ACCURACY = ("Share of pairs whose chosen answer has the larger reward; of labelled answers, share on their side of 0 (of the KL, where the "
            "loss has one).")  # fmt: skip
PREFERENCE = {
    "loss/train": Metric("Loss of the step.", outcome="loss"),
    "loss/preference": Metric("The preference loss in it, mean over the step's items."),
    "loss/sft": Metric("Negative log-likelihood of the chosen answers, nats a token."),
    "loss/heldout": Metric("Loss of the held-out items, every `evaluate_every` steps.", better="lower", outcome="held-out loss",
                           when=lambda preference: preference.heldout is not None, hint="Name a heldout split."),
    "accuracy/train": Metric(ACCURACY, better="higher", outcome="accuracy %"),
    "accuracy/heldout": Metric(ACCURACY, better="higher", outcome="held-out accuracy %"),
    "ranking/*": Metric(f"Share of pairs whose chosen answer has the larger log-probability. {OF_PAIRS}"),
    "ranking_per_token/*": Metric(f"The same by mean log-probability of an answer's tokens. {OF_PAIRS}"),
    "ranking_reference/*": Metric(f"`ranking` of the model at the start, where a loss reads it or `track_drift` asks for it. {OF_PAIRS}"),
    "ranking_idealised/*": Metric("Share of pairs with a `chosen_share` that the best policy of DPO's objective with the loss's beta would "
                                  "rank so: what `ranking` can reach at most."),
    "margin/heldout": Metric(f"Mean difference of the rewards of the held-out pairs. {OF_PAIRS}"),
    "rewards/chosen": Metric("Mean reward of chosen (desirable) answers: beta times the log-ratio to the reference, or without one beta "
                             "times the mean log-probability of its tokens."),
    "rewards/rejected": Metric("The same of the others."),
    "rewards/margin": Metric(f"Mean difference of the two. {OF_PAIRS}"),
    "logp/chosen": Metric("Log-probability of a chosen (desirable) answer, nats, mean."),
    "logp/rejected": Metric("The same of the others."),
    "drift/chosen": Metric("Log-ratio of chosen answers to the model at the start, nats a token; below 0 they have become less probable."),
    "drift/rejected": Metric("The same of the others."),
    "drift/kl": Metric("KL to the model at the start, nats an answer, estimated on answers to other prompts; of losses that read `kl`."),
    "tokens/trained": Metric("Tokens in the loss."),
    "tokens/padding_share": Metric("Padding in the forward pass."),
    "tokens/computed_share": Metric("Share of the answers' and prompts' tokens that the forward pass computes."),
    **SPEED,
}  # fmt: skip
METRICS = {"rlvr": RLVR, "sft": SFT, "preference": PREFERENCE, "reward_model": REWARD_MODEL}
"""Section of the recipe → metric → what it is; other sections that train have `FIXED_DATA`."""


def metric(section: str, name: str) -> Metric | None:
    """The table's line for a metric; None where no such metric is measured."""
    table = METRICS.get(section, FIXED_DATA)
    if name in table:
        return None if name.endswith("*") else table[name]
    return next((line for family, line in table.items() if family.endswith("*") and fnmatchcase(name, family)), None)
