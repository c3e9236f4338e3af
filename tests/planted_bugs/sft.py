"""Planted bugs of fine-tuning."""

from __future__ import annotations

SFT = "tests/pipelines/sft/test_sft.py"
LOSS = f"{SFT}::test_the_loss_is_the_mean_over_the_step_s_answer_tokens"
HELD = f"{SFT}::test_heldout_loss_is_per_token_and_of_the_heldout_split"
EPOCHS = f"{SFT}::test_every_epoch_reads_every_conversation_once_in_an_order_of_its_own"
BEST = f"{SFT}::test_the_best_checkpoint_is_handed_on"
RESUME = f"{SFT}::test_interrupted_run_ends_with_the_same_bytes[4]"
RUN, PACK, LOOP = "pipelines/sft/run.py", "pipelines/sft/pack.py", "pipelines/engine/loop.py"
FIXED = "pipelines/engine/fixed_data.py"
CHAT = "pipelines/data/chat.py"
WHICH, MIXTURE = "pipelines/sft/turns.py", "pipelines/sft/mixture.py"
TURNS, MIXED = "tests/pipelines/sft/test_turns.py", "tests/pipelines/sft/test_mixture.py"
PLANTED = {
    "the loss is on the prompt's tokens": (PACK, "trained = np.arange(len(self.tokens)) >= max(1, self.trained_from)", "trained = np.arange(len(self.tokens)) >= 1", [LOSS]),
    "the answer starts a token early": (CHAT, "return tokens, len(prompt_ids)", "return tokens, len(prompt_ids) - 1", [f"{SFT}::test_loss_is_on_the_assistants_tokens_only"]),
    "the last token is dropped": (CHAT, "return tokens, len(prompt_ids)", "return tokens[:-1], len(prompt_ids)", [f"{SFT}::test_loss_is_on_the_assistants_tokens_only"]),
    "a denominator per micro-batch": (RUN, "loss = losses.sum() * counts / max(denominator, LEAST)", "loss = losses.mean()", [LOSS]),
    "prompts in the denominator": (RUN, "trained = sum(self.documents[i].trained_count for", "trained = sum(len(self.documents[i].tokens) for", [LOSS]),
    "micro-batches without the first": (RUN, "            self.weights.backward(loss, last=last)", "            self.model.zero_grad()\n            self.weights.backward(loss, last=last)", [LOSS]),
    "held-out rows are training rows": (RUN, "self._documents(data, sft.heldout)[:HELDOUT_ROWS]", "self._documents(data, sft.split)[:HELDOUT_ROWS]", [HELD]),
    "held-out loss per micro-batch": (RUN, "count += len(targets)", "count += 1", [HELD]),
    "every epoch in the same order": (PACK, 'random.Random(f"{seed} {epoch}")', 'random.Random(f"{seed}")', [EPOCHS]),
    "rows are drawn again": (FIXED, "start, epoch = max(0, start - len(rows)), epoch + 1", "start, epoch = 0, epoch + 1", [EPOCHS]),
    "the last checkpoint is handed on, not the best": (LOOP, '            self.weights.load(state["model"])\n            self.selected(state)', '            self.selected(state)', [BEST]),
    "the worst checkpoint is the best": (FIXED, "return -self.last_heldout_loss", "return self.last_heldout_loss", [BEST]),
    "the optimizer forgets at a restart": (LOOP, '        parallel.load_optimizer(self.optimizer, state["optimizer"])\n', "", [RESUME]),
    "the schedule starts over at a restart": (LOOP, 'self.start_step, self.resumed = state["step"], True', 'self.start_step, self.resumed = state["step"] - 1, True', [RESUME]),
    "the answer instead of the solution": (PACK, 'text = str(solution) if solution and which != "answer" else problem.answer', "text = problem.answer", [f"{SFT}::test_loss_is_on_the_assistants_tokens_only"]),
    "conversations that are too long are cut, not dropped": (RUN, "fitting = [d for d in documents if len(d.tokens) <= self.settings.max_length]", "fitting = [Document(d.tokens[: self.settings.max_length], d.trained_from) for d in documents]", [f"{SFT}::test_long_conversations_are_dropped_whole"]),
    "a template that rewrites the prompt passes": (CHAT, "elif mark and before.startswith(head) and (opened or not before[len(head) :].strip()):", "elif True:", [f"{SFT}::test_template_that_rewrites_the_prompt_is_refused"]),
    "weights are not in the denominator": (RUN, "denominator = sum(self.documents[i].trained_weight for", "denominator = sum(self.documents[i].trained_count for", [f"{SFT}::test_weights_of_sources_and_records"]),
    "weights of other documents": (PACK, "[documents[i].token_weights() for i in members]", "[documents[i].token_weights() for i in reversed(members)]", [f"{SFT}::test_weights_of_sources_and_records"]),
    "turns that are marked are trained": (PACK, 'marks = problem.info.get(TURN_WEIGHTS) if turns == "marked" else None', "marks = None", [f"{TURNS}::test_marked_turns_are_left_out"]),
    "the tokens after the last trained turn are trained": (WHICH, "if parts[-1][1] < length:", "if False:", [f"{TURNS}::test_turn_parts_cover_exactly_the_trained_turns"]),
    "a span is a token short": (WHICH, "tokens[start:end], tokenizer) + 1", "tokens[start:end], tokenizer)", [f"{TURNS}::test_a_span_holds_every_token_of_its_text_and_no_others"]),
    "spans weigh nothing in the denominator": (PACK, "        if not self.factors:\n            return", "        if True:\n            return", [f"{TURNS}::test_the_loss_of_a_step_is_that_of_transformers_with_labels_and_weights"]),
    "the shares of a mixture stay where they start": (MIXTURE, "exact = ends[:, 0] * (1 - place) + ends[:, 1] * place", "exact = ends[:, 0] * (1 - 0 * place)", [f"{MIXED}::test_every_step_is_full_and_no_source_is_far_from_its_share"]),
    "what a source is due is forgotten": (MIXTURE, "        due -= counts\n", "        due *= 0\n", [f"{MIXED}::test_every_step_is_full_and_no_source_is_far_from_its_share"]),
    "parts of a text overlap": (PACK, "tokens[start : start + size] for start", "tokens[start : start + size + 1] for start", [f"{MIXED}::test_every_token_of_a_text_is_trained_once_and_long_texts_are_cut_into_parts"]),
}  # fmt: skip
