"""The table of columns: everything that methods, providers and the loop exchange about a step, in one place.

A method asks for columns by naming them as positional parameters, so this table is the glossary of the whole catalogue.
What `pack` fills, what a recipe's check refuses, the toy batches of tests and benchmarks and the page docs/columns.md are derived from
it. Letters: B rows (one trajectory each), T token positions, S turns, V tokens of the vocabulary, K statistics a row, C reward terms, P
pairs, M trained tokens, N labelled steps. Position t holds the log-probability of token t given the tokens before it, so position 0 is
never trained. This file imports no torch: reading a recipe stays fast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import nan
from typing import TYPE_CHECKING, Annotated, Any

from pipelines.base.errors import RecipeError
from pipelines.data.records import Stop

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.data.records import Trajectory
else:
    Tensor = Any

PerPair = Annotated[Tensor, "P"]
PerTrained = Annotated[Tensor, "M"]
PerStep = Annotated[Tensor, "N"]
PerRow = Annotated[Tensor, "B"]
PerToken = Annotated[Tensor, "B T"]
PerTurn = Annotated[Tensor, "B S"]
PerTokenTop = Annotated[Tensor, "B T V"]
RowStatistics = Annotated[Tensor, "B K"]


class Phase(IntEnum):
    """Parts of a step, in order. A column exists from its phase on."""

    ROLLOUT = 0
    """Trajectories are being sampled; there are no columns yet."""
    REWARD = 1
    """They are being scored."""
    FILTER = 2
    """They are packed; which rows train is decided, draw by draw."""
    ADVANTAGE = 3
    """The providers have filled their columns; rewards are shaped and compared."""
    CREDIT = 4
    """Rows have advantages; tokens get theirs, stored rows join, and the loss's weights are made."""
    LOSS = 5
    """The policy has been run on the tokens."""


SLOT_PHASE = {
    "curriculum": Phase.ROLLOUT,
    "prompting": Phase.ROLLOUT,
    "rollout": Phase.ROLLOUT,
    "reward": Phase.REWARD,
    "sampling_schedule": Phase.FILTER,
    "filter": Phase.FILTER,
    "shaping": Phase.ADVANTAGE,
    "advantage": Phase.ADVANTAGE,
    "credit": Phase.CREDIT,
    "replay": Phase.CREDIT,
    "loss_aggregation": Phase.CREDIT,
    "objective": Phase.LOSS,
    "divergence": Phase.LOSS,
    "auxiliary_loss": Phase.LOSS,
}
"""Slot → the phase in which its methods are called with columns."""
HOOK_PHASE = Phase.CREDIT
"""The phase of `on_batch`, whose columns a card lists as `reads`."""


@dataclass(frozen=True)
class Column:
    """One line of the table."""

    shape: str
    """Such as "B T"; "" for a scalar of the whole step."""
    dtype: str
    """float32, int64 or bool; int for a number."""
    phase: Phase
    """The first phase in which it exists."""
    provider: str
    """Who provides it."""
    description: str
    fill: float = 0
    """Its value past the row's tokens or turns, and where a token has none."""
    field: str = ""
    """The trajectory's field with a value for each token or turn, where it comes from one."""
    row: Callable[[Trajectory], Any] | None = None
    """The row's value, where one trajectory alone says it."""
    part: bool = False
    """It exists only where some part of the recipe makes it, as the part's card says."""
    when: Callable[[Any], bool] | None = None
    """It exists only where the recipe's `rlvr` section says so."""
    automatic: str = ""
    """The provider that fills it without being named in the recipe, as soon as a method reads it."""
    hint: str = ""
    """What to add to the recipe where nobody provides it."""
    span: tuple[float, float] = (0.0, 1.0)
    """Usual values, for examples."""


@cache
def task_number(source: str) -> int:
    """What `task` holds of rows of a source, an int64 that is never negative."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "big") >> 1


TEACHER_TOP = "Add a teacher: providers: [{kind: teacher_top, path: ./FOLDER}]."
TURNS = "Use a rollout with turns: rollout: multi_turn."
COLUMNS: dict[str, Column] = {
    # of the whole step
    "step": Column("", "int", Phase.FILTER, "the loop", "Index of the step, from 0."),
    "total_steps": Column("", "int", Phase.FILTER, "the loop", "Steps of the whole run, for schedules."),
    # of a row
    "group": Column("B", "int64", Phase.FILTER, "the trajectory", "Rows with equal values may share a baseline.",
                    row=lambda t: t.group),
    "problem": Column("B", "int64", Phase.FILTER, "the trajectory",
                      "Rows with equal values answer the same problem, in whatever step or run.",
                      row=lambda t: int(t.uid[:15], 16)),
    "task": Column("B", "int64", Phase.FILTER, "the trajectory",
                   "Rows with equal values come from the same source of the data, in whatever step or run.",
                   row=lambda t: task_number(t.source)),
    "on_policy": Column("B", "bool", Phase.FILTER, "pack",
                        "Sampled for this step, with `rlvr.staleness` by older weights, with `rlvr.window` over several steps; not "
                        "replayed."),
    "replayed": Column("B", "bool", Phase.FILTER, "the trajectory, then the replay",
                       "A replay has put the row into the batch. Rows that a sampling schedule carried over, or that a sample stage drew, "
                       "are not replayed.", row=lambda t: t.replayed),
    "scored": Column("B", "bool", Phase.FILTER, "pack",
                     "The row enters group and batch statistics: it has a score and a token that trains."),
    "in_loss": Column("B", "bool", Phase.FILTER, "pack, then the filter",
                      "The row enters the loss and its denominator; of scored rows, those that the filter leaves."),
    "reward": Column("B", "float32", Phase.FILTER, "the reward part, then shaping",
                     "The score, shaped from the phase advantage on; 0 where the row is not scored.",
                     row=lambda t: t.score if t.score is not None else 0.0),
    "raw_reward": Column("B", "float32", Phase.FILTER, "the reward part", "The score before shaping.",
                         row=lambda t: t.score if t.score is not None else 0.0),
    "correct": Column("B", "float32", Phase.FILTER, "the verifier",
                      "1 where the verifier judged it correct, 0 where incorrect or unscored; never shaped.",
                      row=lambda t: float(bool(t.correct))),
    "length": Column("B", "float32", Phase.FILTER, "pack",
                     "Tokens the policy chose; of a row without any, its teacher-forced ones."),
    "truncated": Column("B", "bool", Phase.FILTER, "the trajectory", "The row ended at the token limit.",
                        row=lambda t: t.stop == Stop.LENGTH),
    "unfinished": Column("B", "bool", Phase.FILTER, "the trajectory",
                         "The row has no outcome yet: it goes on in a later step (`rlvr.window`); without windows, it ended at the "
                         "token limit.",
                         row=lambda t: t.stop == (Stop.LENGTH if t.versions is None else Stop.WINDOW)),
    "environment_ended": Column("B", "bool", Phase.FILTER, "the trajectory",
                                "The environment said that the episode is over: no turn could follow the last.",
                                row=lambda t: t.stop == Stop.ENVIRONMENT),
    "max_tokens": Column("B", "float32", Phase.FILTER, "the trajectory", "The token limit the row was sampled under.",
                         row=lambda t: float(t.max_tokens)),
    "player": Column("B", "int64", Phase.FILTER, "a rollout with turns",
                     "The seat that the policy took in a game, from 0; 0 where there are no players.",
                     row=lambda t: t.player or 0, part=True, hint=TURNS),
    "episode": Column("B", "int64", Phase.FILTER, "a rollout with turns", "Rows of a group with equal values from 0 on are of one episode.",
                      row=lambda t: t.extras.get("episode", -1), part=True, hint=TURNS, span=(-1, 0)),
    "reward_terms": Column("B C", "float32", Phase.FILTER, "a reward that is a sum of named terms",
                           "What each of its terms adds to the row's reward, weights and gates included.", field="terms", part=True,
                           hint="Give the reward as a list of terms: reward: [verifier, ...]."),
    "turn_reward_terms": Column("B C", "float32", Phase.FILTER, "a reward that is a sum of named terms, with turns",
                                "What each of its terms pays the turns: as many values as terms for the first turn, then for the next. The "
                                "rest of `reward_terms` was paid for the whole answer.", field="turn_terms", part=True, hint=TURNS),
    # of a token, as the trajectory has it
    "token": Column("B T", "int64", Phase.FILTER, "the trajectory", "Token ids.", field="tokens"),
    "mask": Column("B T", "bool", Phase.FILTER, "pack",
                   "Tokens of scored rows that are trained: chosen by the policy, or teacher-forced."),
    "in_window": Column("B T", "bool", Phase.FILTER, "pack",
                        "Tokens of the row's last window; those of earlier windows (`rlvr.window`) were there in earlier steps."),
    "sampled_now": Column("B T", "bool", Phase.FILTER, "pack",
                          "Tokens drawn by the weights that sample this step; with `rlvr.window`, older ones drew the earlier windows."),
    "teacher_forced": Column("B T", "bool", Phase.FILTER, "a rollout with demonstrations or hints",
                             "Tokens of `mask` that the policy did not choose; their `logp_old` is the trainer's own.",
                             part=True,
                             hint="Use a rollout that trains on solutions or hints: rollout: demonstrated, seele or adhint."),
    "logp_old": Column("B T", "float32", Phase.FILTER, "the sampler",
                       "Log-probability (nats) of the token when it was sampled; the ratio's denominator.",
                       field="logp_old", span=(-2.0, 0.0)),
    "entropy_old": Column("B T", "float32", Phase.FILTER, "the sampler, where a method asks",
                          "Entropy (nats) of the distribution the token was drawn from.", field="entropy_old"),
    "token_reward": Column("B T", "float32", Phase.FILTER, "a reward that pays tokens",
                           "What the token is paid beside `reward`, by shaping too; the loop puts it into `token_penalty` and `reward`.",
                           field="token_reward", part=True, hint="Use a reward that pays tokens, such as drlc.", span=(0.0, 0.0)),
    "turn": Column("B T", "int64", Phase.FILTER, "a rollout with turns",
                   "Index of the turn that produced the token, -1 outside turns.", fill=-1, field="turn", part=True, hint=TURNS),
    "node": Column("B T", "int64", Phase.FILTER, "a rollout that branches",
                   "Tree node that produced the token; rows that share a prefix share its nodes, groups never do.", fill=-1,
                   field="node", part=True, hint="Use a rollout that branches: rollout: tree."),
    "mc_value": Column("B T", "float32", Phase.FILTER, "a rollout that samples continuations",
                       "Mean score of continuations from before the token; NaN where none was drawn.", fill=nan,
                       field="mc_value", part=True, hint="Use a rollout that samples continuations: rollout: chain."),
    # of a turn
    "turn_reward": Column("B S", "float32", Phase.FILTER, "a rollout with turns, then shaping", 
                          "Reward paid at the end of the turn; for shaping and advantages the last one has what the whole answer earned.",
                          field="turn_reward", part=True, hint=TURNS),
    "turn_state": Column("B S", "int64", Phase.FILTER, "a rollout with turns",
                         "Equal values mean that the policy saw the same state, or stated the same belief; -1 past the last turn.", fill=-1,
                         field="turn_state", part=True, hint=TURNS),
    "turn_belief": Column("B S", "float32", Phase.FILTER, "a rollout with turns",
                          "The part of `turn_reward` that pays the belief which the turn states; 0 where it states none.",
                          field="turn_belief", part=True, hint=TURNS, span=(0.0, 0.0)),
    "turn_valid": Column("B S", "float32", Phase.FILTER, "a rollout with turns",
                         "1 where the environment could execute the turn's action, 0 where the message was none.", field="turn_valid",
                         part=True, hint=TURNS),
    # of the learner's providers
    "logp_sampler": Column("B T", "float32", Phase.ADVANTAGE, "the sampler, where old_logp is trainer",
                           "What the sampler reported, where `rlvr.old_logp: trainer` puts the trainer's value into `logp_old`.",
                           when=lambda rlvr: rlvr.old_logp == "trainer", hint="Set old_logp: trainer.", span=(-2.0, 0.0)),
    "logp_ref": Column("B T", "float32", Phase.ADVANTAGE, "the reference policy", "Log-probability under the frozen reference.",
                       automatic="reference", span=(-2.0, 0.0)),
    "value": Column("B T", "float32", Phase.ADVANTAGE, "the critic, or a reward model on prefixes",
                    "Its estimate before the token is chosen.", part=True,
                    hint="Add a critic: providers: [{kind: critic, learning_rate: 1.0e-5}].", span=(0.0, 0.3)),
    "turn_value": Column("B S", "float32", Phase.ADVANTAGE, "a critic of whole turns",
                         "Its estimate of the return, or of success, from the state in which the turn is taken; 0 past the last turn.",
                         part=True,
                         hint="Add a critic of turns: providers: [iql], [archer] or [digirl].", span=(0.0, 0.3)),
    "turn_action_value": Column("B S", "float32", Phase.ADVANTAGE, "a critic of whole turns",
                                "Its estimate of the return from that state with the turn taken; 0 past the last turn.", part=True,
                                hint="Add a critic of turns: providers: [iql] or [archer].", span=(0.0, 0.3)),
    "teacher_top_id": Column("B T V", "int64", Phase.ADVANTAGE, "the teacher", "The tokens that a frozen teacher finds the most probable.",
                             part=True, hint=TEACHER_TOP, span=(3, 9)),
    "logp_teacher_top": Column("B T V", "float32", Phase.ADVANTAGE, "the teacher",
                               "Its log-probabilities (nats) of these, of the whole vocabulary at the sampling temperature.",
                               part=True, hint=TEACHER_TOP, span=(-4.0, -1.2)),
    "logp_teacher": Column("B T", "float32", Phase.ADVANTAGE, "the teacher", "Log-probability under a frozen teacher.",
                           part=True, hint="Add a teacher: providers: [{kind: teacher, path: ./FOLDER}].", span=(-2.0, 0.0)),
    "step_potential": Column("B S", "float32", Phase.FILTER, "a rollout that probes steps, or a reward that grades them",
                             "How near the policy is to a right answer at the end of the step, from -1 to 1, or whether a judge calls the "
                             "step correct, 1 or 0; NaN past the last step.",
                             fill=nan, field="potential", part=True, span=(-1.0, 1.0),
                             hint="Use a rollout that probes steps (spae), or a reward that grades them, reward: exprl, gen_prm or "
                                  "process_model."),
    "segment": Column("B T", "int64", Phase.ADVANTAGE, "a provider that reads the text",
                      "Index of the reasoning's segment, 0 for what stands before the first keyword; -1 outside the reasoning.",
                      fill=-1, part=True, hint="Find the segments: providers: [segments]."),
    "answer_logp": Column("B S", "float32", Phase.ADVANTAGE, "the policy, of the gold answer",
                          "Mean log-probability of the gold answer's tokens where the turn begins; NaN past the last turn, and of a row "
                          "without an answer.", fill=nan, part=True,
                          hint="Score the gold answer: providers: [answer_log_prob].", span=(-2.0, 0.0)),
    "process_reward": Column("B T", "float32", Phase.ADVANTAGE, "a process reward model",
                             "Reward of each token, before any baseline.", part=True,
                             hint="Add a process reward model: providers: [implicit_prm] or [trajectory_prm].", span=(-0.2, 0.2)),
    "hidden_stats": Column("B K", "float32", Phase.ADVANTAGE, "the hidden-state statistics",
                           "Statistics of the row's hidden states, as `column_options` asks for them (`HiddenStatistics`).",
                           automatic="hidden_statistics"),
    # of the slots and the policy
    "token_penalty": Column("B T", "float32", Phase.ADVANTAGE, "a divergence in the reward, a reward that pays tokens",
                            "What the one charges each token less what the other pays it; `reward` is the row's with their sum taken off.",
                            span=(0.0, 0.0)),
    "immediate_reward": Column("B T", "float32", Phase.ADVANTAGE, "the loop",
                               "What is paid at the token: a turn's reward on its last trained token, without turns the row's on its "
                               "last, less `token_penalty`. A critic is fitted to the sum of what is still to come."),
    "loss_share": Column("B T", "float32", Phase.ADVANTAGE, "the loop, then advantage and credit",
                         "How much of a token the loss and its denominators count: 1, 0 where a method left it out, or 1 / k "
                         "where k rows hold copies of it that count as one. 0 outside `mask`.", span=(1.0, 1.0)),
    "advantage": Column("B T", "float32", Phase.CREDIT, "the advantage, then credit", "Advantage of each trained token."),
    "weight": Column("B T", "float32", Phase.LOSS, "loss aggregation",
                     "What the token's loss counts in its optimizer update.", span=(0.0, 0.01)),
    "logp": Column("B T", "float32", Phase.LOSS, "the policy", "Log-probability (nats), with gradient.", span=(-2.0, 0.0)),
    "entropy": Column("B T", "float32", Phase.LOSS, "the policy", "Entropy (nats) of its distribution, with gradient."),
    "logp_top": Column("B T V", "float32", Phase.LOSS, "the policy",
                       "Its log-probabilities (nats) of the tokens in `teacher_top_id`, with gradient.", span=(-4.0, -1.2)),
    "entropy_top_p": Column("B T", "float32", Phase.LOSS, "the policy",
                            "Entropy over the most probable tokens alone, with gradient; `column_options` says how much mass.",
                            span=(0.0, 0.5)),
}  # fmt: skip

REWARD_MODEL_COLUMNS: dict[str, Column] = {
    "pair": Column("P", "int64", Phase.LOSS, "the data", "Place of the pair in its split: the same in every epoch.", span=(0, 9)),
    "chosen_reward": Column("P", "float32", Phase.LOSS, "the reward model", "Score of the chosen answer, with gradient; of several heads, "
                            "one at a time.", span=(-2.0, 2.0)),
    "rejected_reward": Column("P", "float32", Phase.LOSS, "the reward model", "The same of the rejected answer.", span=(-2.0, 2.0)),
    "chosen_length_reward": Column("P", "float32", Phase.LOSS, "the reward model's second head",
                                   "Its score of the chosen answer, with gradient.", part=True, span=(-2.0, 2.0)),
    "rejected_length_reward": Column("P", "float32", Phase.LOSS, "the reward model's second head",
                                     "The same of the rejected answer.", part=True, span=(-2.0, 2.0)),
    "chosen_prior": Column("P", "float32", Phase.LOSS, "the reward model",
                           "Mean over the turns of the chosen answer of the squared distance between the turn's reward and its share "
                           "of the answer's, with gradient; 0 for an answer of one turn.", part=True),
    "rejected_prior": Column("P", "float32", Phase.LOSS, "the reward model", "The same of the rejected answer.", part=True),
    "head_cosine": Column("", "float32", Phase.LOSS, "the reward model's heads",
                          "Cosine of the weights of both heads, with gradient.", part=True, span=(-1.0, 1.0)),
    "margin": Column("P", "float32", Phase.LOSS, "the data",
                     "By how much the chosen answer is better: the pair's own margin, else the difference of its scores, else 0."),
    "chosen_length": Column("P", "float32", Phase.LOSS, "the data", "Tokens of the chosen answer, its end token included.",
                            span=(1.0, 20.0)),
    "rejected_length": Column("P", "float32", Phase.LOSS, "the data", "The same of the rejected answer.", span=(1.0, 20.0)),
    "chosen_logp": Column("P", "float32", Phase.LOSS, "the language head",
                          "Log-probability (nats) of the chosen answer under the language head, with gradient.", part=True,
                          span=(-20.0, -1.0)),
    "rejected_logp": Column("P", "float32", Phase.LOSS, "the language head", "The same of the rejected answer.", part=True,
                            span=(-20.0, -1.0)),
    "latent_kl": Column("P", "float32", Phase.LOSS, "reward_model.users",
                        "KL (nats) of the posterior of the user's latent to a standard normal, with gradient; 0 without a user.",
                        part=True, span=(0.0, 2.0)),
    "progress": Column("", "float32", Phase.LOSS, "the loop", "Share of the run's steps that are done.", part=True, span=(0.0, 1.0)),
    "chosen_critique_logp": Column("P", "float32", Phase.LOSS, "the language head",
                                   "Log-probability (nats) of the critique of the chosen answer, with gradient.", part=True,
                                   span=(-20.0, -1.0)),
    "rejected_critique_logp": Column("P", "float32", Phase.LOSS, "the language head", "The same of the rejected answer's critique.",
                                     part=True, span=(-20.0, -1.0)),
    "chosen_critique_length": Column("P", "float32", Phase.LOSS, "reward_model.critique",
                                     "Tokens of the critique of the chosen answer, its end token included.", part=True,
                                     span=(1.0, 20.0)),
    "rejected_critique_length": Column("P", "float32", Phase.LOSS, "reward_model.critique",
                                       "The same of the rejected answer's critique.", part=True, span=(1.0, 20.0)),
    "chosen_logp_ref": Column("P", "float32", Phase.LOSS, "the model that is started from",
                              "Log-probability of the chosen answer before any step.", part=True, span=(-20.0, -1.0)),
    "rejected_logp_ref": Column("P", "float32", Phase.LOSS, "the model that is started from", "The same of the rejected answer.",
                                part=True, span=(-20.0, -1.0)),
    # of an answer with labelled steps
    "step_reward": Column("N", "float32", Phase.LOSS, "the reward model", "Score of the reasoning up to the end of each labelled step, "
                          "with gradient; of several heads, one at a time.", part=True, span=(-2.0, 2.0)),
    "step_label": Column("N", "float32", Phase.LOSS, "reward_model.step_labels", "Label of the step, from 0 (incorrect) to 1 (correct).",
                         part=True, span=(0.0, 1.0)),
}  # fmt: skip
"""What a loss of a reward model may know of an optimizer step."""
PREFERENCE_COLUMNS: dict[str, Column] = {
    # of a pair
    "chosen_logp": Column("P", "float32", Phase.LOSS, "the policy",
                          "Log-probability (nats) of the whole chosen answer, with gradient.", span=(-20.0, -1.0)),
    "rejected_logp": Column("P", "float32", Phase.LOSS, "the policy", "The same of the rejected answer.", span=(-20.0, -1.0)),
    "gold_logp": Column("P", "float32", Phase.LOSS, "the policy", "The same of the record's solution or answer.", span=(-20.0, -1.0)),
    "chosen_logp_ref": Column("P", "float32", Phase.LOSS, "the reference policy",
                              "Log-probability of the chosen answer under the frozen reference.", span=(-20.0, -1.0)),
    "rejected_logp_ref": Column("P", "float32", Phase.LOSS, "the reference policy", "The same of the rejected answer.",
                                span=(-20.0, -1.0)),
    "chosen_length": Column("P", "float32", Phase.LOSS, "the data", "Tokens of the chosen answer, its end token included.",
                            span=(1.0, 20.0)),
    "rejected_length": Column("P", "float32", Phase.LOSS, "the data", "The same of the rejected answer.", span=(1.0, 20.0)),
    "chosen_length_mean": Column("", "float32", Phase.LOSS, "the data",
                                 "Mean of `chosen_length` over the pairs of the optimizer step.", span=(1.0, 20.0)),
    "gold_length_mean": Column("", "float32", Phase.LOSS, "the data", "Mean tokens of the step's solutions.", span=(1.0, 20.0)),
    "chosen_score": Column("P", "float32", Phase.LOSS, "the data", "Graded score of the chosen answer.", part=True,
                           hint="Give the pairs the columns chosen_score and rejected_score, as a curate stage's pairs have."),
    "rejected_score": Column("P", "float32", Phase.LOSS, "the data", "Graded score of the rejected answer.", part=True,
                             hint="Give the pairs the columns chosen_score and rejected_score, as a curate stage's pairs have."),
    "margin": Column("P", "float32", Phase.LOSS, "the data",
                     "By how much the chosen answer is better: the pair's own margin, else the difference of its scores, else 0."),
    "chosen_logp_head": Column("P", "float32", Phase.LOSS, "the policy",
                               "Log-probability of the first tokens of the chosen answer, as many as the pair's shorter answer has, with "
                               "gradient.", span=(-20.0, -1.0)),
    "rejected_logp_head": Column("P", "float32", Phase.LOSS, "the policy", "The same of the rejected answer.", span=(-20.0, -1.0)),
    "chosen_logp_head_ref": Column("P", "float32", Phase.LOSS, "the reference policy", "`chosen_logp_head` under the reference.",
                                   span=(-20.0, -1.0)),
    "rejected_logp_head_ref": Column("P", "float32", Phase.LOSS, "the reference policy", "The same of the rejected answer.",
                                     span=(-20.0, -1.0)),
    "chosen_on_policy": Column("P", "float32", Phase.LOSS, "the policy",
                               "Mean over the chosen answer's tokens of log p(token) less log of the sum of p^2 over all tokens; without "
                               "gradient.", span=(-3.0, 0.0)),
    "rejected_on_policy": Column("P", "float32", Phase.LOSS, "the policy", "The same of the rejected answer.", span=(-3.0, 0.0)),
    "lead_ref_ranked": Column("P", "float32", Phase.LOSS, "the policy and the reference",
                              "The reference's lead (log-probability of the chosen answer less that of the rejected one) whose rank in the "
                              "step is that of the policy's lead of this pair; without gradient."),
    "chosen_ratio_ranked": Column("P", "float32", Phase.LOSS, "the policy and the reference",
                                  "The chosen answers' log-ratio whose rank in the step is that of this pair's rejected answer among the "
                                  "rejected ones; without gradient."),
    "rejected_ratio_ranked": Column("P", "float32", Phase.LOSS, "the policy and the reference",
                                    "The rejected answers' log-ratio whose rank in the step is that of this pair's chosen answer among the "
                                    "chosen ones; without gradient."),
    # of a single answer, labelled or one of a pair
    "logp": Column("B", "float32", Phase.LOSS, "the policy", "Log-probability (nats) of the whole answer, with gradient.",
                   span=(-20.0, -1.0)),
    "logp_ref": Column("B", "float32", Phase.LOSS, "the reference policy", "The same under the frozen reference.",
                       span=(-20.0, -1.0)),
    "desirable": Column("B", "bool", Phase.LOSS, "the data", "Whether the answer is labelled good, or is the chosen one of a pair."),
    "kl": Column("", "float32", Phase.LOSS, "the policy and the reference",
                 "KL(policy || reference) in nats an answer, estimated on prompts with answers to other prompts; never below 0, "
                 "without gradient.", span=(0.0, 2.0)),
    "log_ratio_mean": Column("", "float32", Phase.LOSS, "the policy and the reference",
                             "Mean log-ratio of all answers of the steps so far, this one's included; without gradient."),
}  # fmt: skip
"""What a preference loss may know of an optimizer step."""
SFT_COLUMNS: dict[str, Column] = {
    "logp": Column("M", "float32", Phase.LOSS, "the policy", "Log-probability (nats) of each trained token, with gradient.",
                   span=(-3.0, 0.0)),
    "logp_old": Column("M", "float32", Phase.LOSS, "the policy before the step", "The same before the first of the step's updates, without "
                       "gradient.", part=True, hint="Make several updates a step: mini_batches: 8.", span=(-3.0, 0.0)),
}  # fmt: skip
"""What a loss of SFT may know of the tokens of a forward pass."""
TABLES = {"sft": SFT_COLUMNS, "preference": PREFERENCE_COLUMNS, "reward_model": REWARD_MODEL_COLUMNS}
"""Room → its own table, where it is not `COLUMNS`."""


def columns_of(slot: str) -> dict[str, Column]:
    """The columns that the methods of a slot (`rlvr.advantage`, `preference.loss`) may read."""
    return TABLES.get(slot.partition(".")[0], COLUMNS)


def phase_of(slot: str) -> Phase:
    """The phase in which a slot's methods are called; slots are named with or without `rlvr.`"""
    return SLOT_PHASE[slot.removeprefix("rlvr.")]


PLUGINS: dict[str, str] = {}
"""Column of `COLUMNS` that a plug-in has brought → the plug-in."""


def register(brought: Mapping[str, Column], plugin: str) -> None:
    """Take the columns of a plug-in into the table of RLVR's columns.

    Raises:
        RecipeError: there is another column of that name.
    """
    for name, column in brought.items():
        if COLUMNS.setdefault(name, column) is not column:
            raise RecipeError(
                "plugins", f"{plugin} brings a column {name!r}, and there is one of that name", "Call it otherwise."
            )
        PLUGINS[name] = plugin


def withdraw(plugin: str) -> None:
    """Take the columns of a plug-in out of the table again."""
    for name in [name for name, owner in PLUGINS.items() if owner == plugin]:
        COLUMNS.pop(name, None)
        del PLUGINS[name]
