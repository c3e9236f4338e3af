"""Planted bugs of preference optimisation."""

from __future__ import annotations

RUN_TEST, LOSS_TEST = "tests/pipelines/preference/test_run.py", "tests/pipelines/preference/test_loss.py"
STEP = f"{RUN_TEST}::test_a_step_s_loss_is_the_mean_over_its_pairs"
TRL = "tests/pipelines/preference/test_loss_trl.py::test_loss_and_gradient_are_those_of_trl"
SHEETS = f"{LOSS_TEST}::test_the_sheets_examples"
RESUME = f"{RUN_TEST}::test_an_interrupted_run_ends_with_the_same_bytes[3]"
RUN, EXAMPLES = "pipelines/preference/run.py", "pipelines/preference/examples.py"
RANKS = "tests/pipelines/preference/test_run_ranks.py::test_two_processes_give_the_weights_and_metrics_of_one"
MEASURES = "pipelines/preference/measures.py"
RANKINGS = f"{RUN_TEST}::test_rankings_of_held_out_pairs_are_those_of_a_loop"
PLANTED = {
    "the reference is scored after training began": (RUN, 'columns[f"{name}logp{ending}_ref"] = before[:, number]', 'columns[f"{name}logp{ending}_ref"] = columns[f"{name}logp{ending}"].detach()', [STEP]),
    "a mean per pass, not per step": (RUN, "losses.sum() / len(items) + ", "losses.mean() + ", [STEP]),
    "the SFT term counts pairs, not tokens": (RUN, 'step["chosen_tokens"]\n', "len(items)\n", [STEP]),
    "the prompt's tokens count": (EXAMPLES, "mask[place, examples.start[row] : len(ids)] = True", "mask[place, 1 : len(ids)] = True", [STEP]),
    "the last token is left out": (EXAMPLES, "mask[place, examples.start[row] : len(ids)] = True", "mask[place, examples.start[row] : len(ids) - 1] = True", [STEP]),
    "chosen and rejected swapped": (RUN, 'else ("chosen_", "rejected_", "gold_")', 'else ("rejected_", "chosen_", "gold_")', [STEP]),
    "values of other pairs": (RUN, "name: value[part].to(self.device)", "name: value[: len(part)].to(self.device)", [f"{TRL}[kto-shared]"]),
    "KTO's reference point may be below 0": (RUN, "(total / len(items)).clamp(min=0)", "(total / len(items)) - 1", [f"{TRL}[kto-padded]"]),
    "a restart scores the reference with the trained weights": (RUN, 'self.reference, self.last_measured = dict(state["reference"])', 'self.reference, self.last_measured = {}', [RESUME]),
    "dropout in training": (RUN, "    section = \"preference\"\n", "    section, dropout = \"preference\", True\n", [f"{RUN_TEST}::test_lora_and_bfloat16"]),
    "the whole data are scored for two steps": (RUN, "needed = {item for step in range(first, last) for item in self.epochs.step(step)}", "pass", [f"{RUN_TEST}::test_only_what_will_be_read_is_scored_with_the_reference"]),
    "TPO's third answer is the chosen one": (RUN, 'else ("chosen_", "rejected_", "gold_")', 'else ("gold_", "rejected_", "chosen_")', [f"{RUN_TEST}::test_a_loss_may_read_the_record_s_answer_as_a_third_one"]),
    "KTO compares with the prompt's own answer": (EXAMPLES, "other = rows[place - back]", "other = rows[place]", [f"{RUN_TEST}::test_labelled_answers_are_learned"]),
    "every pass over the pairs in the same order": ("pipelines/engine/fixed_data.py", 'random.Random(f"{seed} {epoch}")', 'random.Random(f"{seed}")', ["tests/pipelines/engine/test_fixed_data.py::test_every_pass_over_the_data_has_an_order_of_its_own"]),
    "a missing score is 0": (EXAMPLES, "if score is None and name in self.wanted:", "if False:", [f"{RUN_TEST}::test_what_the_data_lack_is_said_with_the_record"]),
    "the idealised ranking forgets the reference": (MEASURES, "return lead + torch.logit", "return torch.logit", [RANKINGS]),
    "rankings per token are of whole answers": (MEASURES, "chosen_logp / chosen_length.clamp(min=1) > rejected_logp / rejected_length.clamp(min=1)", "chosen_logp > rejected_logp", [RANKINGS]),
    "the card is of the last weights, not of the best": (RUN, 'if self.measures and self.settings.checkpoint_selection == "best":', "if False:", [f"{RUN_TEST}::test_the_best_checkpoint_is_handed_on"]),
    "each process has a reference point of its own": (RUN, "total = self.world.total(total).to(self.device)", "total = total * self.world.size", [f"{RANKS}[labels]"]),
    "a repeated pass trains twice": (RUN, "self.weights.backward(loss * counts, last=last)", "self.weights.backward(loss, last=last)", [f"{RANKS}[dpo]"]),
    "weights that are loaded after a measurement are lost": ("pipelines/engine/parallel.py", "self.entry.reshard()", "pass", [f"{RANKS}[gone back after a measurement]"]),
    "DPO's sign": ("pipelines/preference/loss/dpo.py", "beta * (chosen - rejected)", "beta * (rejected - chosen)", [SHEETS]),
    "IPO sums over tokens": ("pipelines/preference/loss/ipo.py", "    if length_normalised:\n", "    if not length_normalised:\n", [f"{TRL}[ipo-shared]"]),
    "robust DPO without its denominator": ("pipelines/preference/loss/robust_dpo.py", " / (1 - 2 * false_rate)", "", [f"{TRL}[robust-shared]"]),
    "RPO's directions swapped": ("pipelines/preference/loss/rpo.py", 'if distance == "backward_kl"', 'if distance == "forward_kl"', [SHEETS]),
    "SimPO's margin added": ("pipelines/preference/loss/simpo.py", "difference - gamma", "difference + gamma", [SHEETS]),
    "AlphaPO's alpha has the other sign": ("pipelines/preference/ops.py", "-torch.expm1((-alpha * x)", "-torch.expm1((alpha * x)", [SHEETS]),
    "APO lowers the chosen answer": ("pipelines/preference/loss/apo.py", "(-beta * chosen).sigmoid() + (beta", "(beta * chosen).sigmoid() + (beta", [f"{TRL}[apo_zero-shared]"]),
    "ORPO without the odds": ("pipelines/preference/ops.py", "    return torch.where(x > -math.log(2), near, far)", "    return torch.zeros_like(x)", [f"{TRL}[orpo-shared]"]),
    "KTO's undesirable answers rise": ("pipelines/preference/loss/kto.py", "(1 - (-gain).sigmoid())", "(1 - gain.sigmoid())", [f"{TRL}[kto-shared]"]),
    "MPO's quality of the rejected answer": ("pipelines/preference/loss/mpo.py", "ops.classification(-rejected)", "ops.classification(rejected)", [SHEETS]),
    "EXO's target is of the rejected answer": ("pipelines/preference/loss/exo.py", "(up - math.log1p(-label_smoothing))", "(up - math.log(label_smoothing))", [f"{TRL}[exo-shared]"]),
    "NCA's noise is of the chosen answer alone": ("pipelines/preference/loss/nca.py", "ops.classification(-rejected)", "ops.classification(-chosen)", [f"{TRL}[nca-shared]"]),
    "SPPO's targets have one sign": ("pipelines/preference/loss/sppo.py", "rejected_logp_ref + target", "rejected_logp_ref - target", [f"{TRL}[sppo-shared]"]),
    "DiscoPOP's parts swapped": ("pipelines/preference/loss/discopop.py", "(-logit / tau).sigmoid()", "(logit / tau).sigmoid()", [f"{TRL}[discopop-shared]"]),
    "Jensen and Shannon's slope has the other sign": ("pipelines/preference/loss/f_dpo.py", "F.logsigmoid(log_ratio)", "F.logsigmoid(-log_ratio)", [f"{TRL}[f_dpo_js-shared]"]),
    "CPO without likelihood": ("pipelines/preference/loss/cpo.py", "preferred - generation", "preferred - 0 * generation", [f"{TRL}[cpo_smoothed_sft-shared]"]),
    "LD-DPO weighs the head": ("pipelines/preference/loss/ld_dpo.py", "(1 - alpha) * (head - head_ref) + alpha * (logp - logp_ref)", "alpha * (head - head_ref) + (1 - alpha) * (logp - logp_ref)", [f"{TRL}[ld_dpo-shared]"]),
    "heads as long as the longer answer": ("pipelines/preference/coupled.py", ".amin(1)", ".amax(1)", [f"{TRL}[ld_dpo-padded]"]),
    "WPO weighs by the sum over tokens": (RUN, "own.view(tokens.shape).sum(1) / mask.sum(1)", "own.view(tokens.shape).sum(1)", [f"{TRL}[wpo-shared]"]),
    "WPO without the policy's own draws": (RUN, "logp.detach() - collision", "logp.detach()", [f"{TRL}[wpo-shared]"]),
    "AOT's ranks are of one sample": ("pipelines/preference/coupled.py", "out[among.argsort(stable=True)]", "out[values.argsort(stable=True)]", [f"{TRL}[aot-shared]"]),
    "AOT's terms count half in the gradient": ("pipelines/preference/loss/aot.py", "both - both.detach() / 2", "both / 2", [f"{TRL}[aot_unpaired-shared]"]),
    "BCO's shift leaves the step out": (RUN, "                if trains:\n", "                if trains and self.log_ratio_mean.count:\n", [f"{TRL}[bco-shared]"]),
    "the shift is lost at a restart": (RUN, 'self.log_ratio_mean.load(state["log_ratios"])', "pass", [f"{RUN_TEST}::test_a_reference_and_a_mean_that_follow_the_policy_resume"]),
    "the reference stays": (RUN, "step % self.settings.reference_every == 0", "step % self.settings.reference_every == -1", [f"{RUN_TEST}::test_the_reference_follows_the_policy"]),
    "an answer that was cut is taught to end": ("pipelines/data/chat.py", "    if not ended:\n        return head + answer", "    if False:\n        return head + answer", ["tests/pipelines/data/test_chat.py::test_an_answer_that_was_cut_has_no_end"]),
}  # fmt: skip
