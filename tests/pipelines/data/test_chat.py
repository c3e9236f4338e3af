"""Chat templates: the families' habits, the recipe's variables, and where an answer begins and ends."""

from __future__ import annotations

import pytest

from benchmarks.families import FAMILIES, TOOL, tokenizer_of
from pipelines.base.errors import DataError, ModelError
from pipelines.contract.model_settings import Model, Tokenizer
from pipelines.data import chat
from pipelines.data.records import Problem, Role
from pipelines.engine import models
from pipelines.sft.pack import check_assistant_mask, document

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abba?"}]
PROBLEM = Problem(uid="1", source="s", licence="x", prompt=ASKED, answer="yes", verifier="exact", info={})


def tokenizer(name, **model):
    loaded = tokenizer_of(FAMILIES[name])
    models.set_template_options(loaded, Model.model_validate({"path": "x", **FAMILIES[name].model, **model}))
    return loaded


def test_a_prior_goes_in_front():
    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2?"}]
    assert chat.with_system_prompt(asked, "Think.")[0]["content"] == "Think.\n\nBe short."
    assert chat.with_system_prompt(asked, None) is asked
    assert Role.TEACHER_FORCED == 5, "stored rows hold the number"


ENDS = {
    "llama": "<|eot_id|>", "qwen2": "<|im_end|>", "qwen3": "<|im_end|>", "gemma2": "<end_of_turn>", "gemma3": "<end_of_turn>",
    "phi3": "<|end|>", "phi": "<|endoftext|>", "mistral": "</s>", "smollm3": "<|im_end|>", "olmo2": "<|endoftext|>",
    "gpt_oss": "<|return|>",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_end_of_a_turn(name):
    loaded = tokenizer(name)
    assert chat.end_of_turn(loaded) == ENDS[name]

    class Network:
        generation_config = None

    assert loaded.convert_tokens_to_ids(ENDS[name]) in models.stop_ids(Network(), loaded)


def test_a_template_without_a_special_token_at_the_end_has_none():
    loaded = models.train_tokenizer("char", 64, ["ab"])
    loaded.chat_template = "{% for m in messages %}{{ m['content'] }}|{% endfor %}"
    assert chat.end_of_turn(loaded) is None


TRAINED = {
    "llama": "yes<|eot_id|>", "qwen2": "yes<|im_end|>\n", "qwen3": "<think>\n\n</think>\n\nyes<|im_end|>\n",
    "qwen3 (not thinking)": "yes<|im_end|>\n", "qwen3 (opens a think block)": "\n</think>\n\nyes<|im_end|>\n",
    "gemma2": "yes<end_of_turn>\n", "phi3": "yes<|end|>\n<|endoftext|>", "phi": "yes<|endoftext|>", "mistral": " yes</s>",
    "smollm3": "yes<|im_end|>\n", "smollm3 (not thinking)": "yes<|im_end|>\n", "olmo2": "yes<|endoftext|>",
    "gpt_oss": "<|channel|>final<|message|>yes<|return|>",
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_sft_trains_what_follows_the_prompt_of_a_rollout(name):
    loaded = tokenizer(name)
    conversation = document(PROBLEM, "answer", loaded)
    assert conversation.tokens[: conversation.trained_from] == chat.render_prompt(loaded, ASKED)
    trained = conversation.tokens[conversation.trained_from :]
    assert loaded.decode(trained) == TRAINED[name]
    completion = chat.after_thinking(chat.completion_text(loaded, trained))
    assert completion.strip() == "yes", "what a verifier reads"


def test_a_template_with_a_space_before_the_end_token_has_one_end_token_a_turn():
    loaded = tokenizer("mistral")
    loaded.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} {{ eos_token }}"
        "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
    )
    reply = chat.reply_tokens(loaded, "sure?")
    assert loaded.decode(reply) == "[INST] sure? [/INST]"
    assert chat.reply_tokens(loaded, "sure?", with_end=True) == [loaded.eos_token_id, *reply]


def test_a_header_of_the_turn_may_be_marked_as_the_assistants():
    assert check_assistant_mask(PROBLEM, "answer", tokenizer("smollm3"))
    wrong = tokenizer("smollm3")
    wrong.chat_template = wrong.chat_template.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
    wrong.chat_template = "{% generation %}" + wrong.chat_template + "{% endgeneration %}"
    with pytest.raises(ModelError, match="disagrees"):
        check_assistant_mask(PROBLEM, "answer", wrong)


def test_a_system_message_without_a_system_role():
    loaded = tokenizer("gemma2")
    assert chat.render_text(loaded, ASKED) == (
        "<bos><start_of_turn>user\nBe brief.\n\nabba?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert chat.render_text(loaded, ASKED) == chat.render_text(tokenizer("gemma3"), ASKED), "as Gemma 3 does it"


@pytest.mark.parametrize("name", ["gemma2", "mistral"])
def test_a_conversation_that_a_template_refuses(name):
    twice = [*ASKED, {"role": "user", "content": "again"}]
    with pytest.raises(chat.TemplateRefusal, match=r"model\.chat_template: .*system, user, user \(.*\)"):
        chat.render_prompt(tokenizer(name), twice)


@pytest.mark.parametrize("name", ["gemma2", "phi3", "llama", "qwen2", "mistral"])
def test_a_reply_continues_the_conversation(name):
    """Prompt, the answer's own ids and the reply are what the template makes of the whole conversation."""
    loaded = tokenizer(name)
    turns = [*ASKED[1:], {"role": "assistant", "content": "no"}, {"role": "user", "content": "sure?"}]
    answer = loaded("no" if name != "mistral" else " no", add_special_tokens=False)["input_ids"]
    ids = [*chat.render_prompt(loaded, ASKED[1:]), *answer, *chat.reply_tokens(loaded, "sure?", with_end=True)]
    assert loaded.decode(ids) == chat.render_text(loaded, turns)
    end = loaded.convert_tokens_to_ids(chat.end_of_turn(loaded))
    assert chat.reply_tokens(loaded, "sure?", with_end=True) == [end, *chat.reply_tokens(loaded, "sure?")]


def test_variables_of_the_template():
    thinking, not_thinking = tokenizer("qwen3"), tokenizer("qwen3 (not thinking)")
    assert chat.render_text(thinking, ASKED).endswith("<|im_start|>assistant\n")
    assert chat.render_text(not_thinking, ASKED).endswith("<think>\n\n</think>\n\n")
    assert chat.render_text(not_thinking, ASKED, enable_thinking=True).endswith("assistant\n"), "a caller's value wins"
    assert models.template_identity(thinking) != models.template_identity(not_thinking)
    assert "reverse" in chat.render_text(tokenizer("qwen3", chat_template_kwargs={"tools": [TOOL]}), ASKED)


def test_variables_survive_being_saved_and_loaded(tmp_path):
    first = tokenizer("smollm3 (not thinking)")
    first.save_pretrained(tmp_path)
    settings = Model(path="x", chat_template_kwargs={"enable_thinking": False})
    again = models.load_tokenizer(tmp_path, settings)
    assert again.chat_template == first.chat_template, "written once"
    assert models.load_tokenizer(tmp_path).chat_template == first.chat_template, "the model keeps them"
    other = models.load_tokenizer(tmp_path, Model(path="x", chat_template_kwargs={"enable_thinking": True}))
    assert "Reasoning Mode: /think" in chat.render_text(other, ASKED)


def test_values_reach_the_template_unchanged():
    values = {"a": {"k": [True, None, 1.5, "it's {{ x }} #} “q” \\n\n"]}, "b": False}
    loaded = models.train_tokenizer("char", 64, ["ab"])
    loaded.chat_template = chat.with_options(
        "{{ a | tojson }}{{ b }}{% for m in messages %}{{ m.content }}{% endfor %}", values, "2025-01-01"
    )
    said = chat.render_text(loaded, ASKED).removesuffix("Be brief.abba?")
    assert said.endswith("False")
    import json

    assert json.loads(said.removesuffix("False")) == values["a"]


def test_the_date_is_fixed():
    assert "Today Date: 01 January 2025\n" in chat.render_text(tokenizer("smollm3"), ASKED)
    assert "Today Date: 02 Mar 2026\n" in chat.render_text(tokenizer("llama", chat_template_date="2026-03-02"), ASKED)
    assert "Current date: 2025-01-01\n" in chat.render_text(tokenizer("gpt_oss"), ASKED)
    plain = tokenizer_of(FAMILIES["qwen2"]).chat_template
    assert tokenizer("qwen2").chat_template == plain, "a template without variables stays as it is"


def test_the_last_message_of_a_completion_in_channels():
    loaded = tokenizer("gpt_oss")
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>"
    assert chat.completion_text(loaded, loaded(text, add_special_tokens=False)["input_ids"]) == "yes"
    assert chat.completion_text(loaded, loaded("yes", add_special_tokens=False)["input_ids"]) == "yes"


@pytest.mark.parametrize("name", ENDS)
def test_many_at_once_are_what_each_is_alone(name):
    loaded = tokenizer(name)
    conversations = [ASKED, ASKED[1:], [{"role": "user", "content": "baab?"}]]
    together = chat.render_prompts(loaded, conversations)
    assert together == [chat.render_prompt(loaded, conversation) for conversation in conversations]
    assert together == [
        loaded(chat.render_text(loaded, c), add_special_tokens=False)["input_ids"] for c in conversations
    ]
    completions = [*together, [], loaded("yes , no !", add_special_tokens=False)["input_ids"]]
    texts = chat.completion_texts(loaded, completions)
    if name != "gpt_oss":  # of whose channels only the last is the text
        assert texts == [loaded.decode(ids, skip_special_tokens=True) for ids in completions]
    loaded.clean_up_tokenization_spaces = True
    assert chat.completion_texts(loaded, completions)[:-1] == texts[:-1]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "mistral"])
def test_an_answer_that_was_cut_has_no_end(name):
    loaded = tokenizer(name)
    whole, start = chat.render_answer(loaded, ASKED, "yes", "r")
    cut, again = chat.render_answer(loaded, ASKED, "yes", "r", ended=False)
    assert start == again and whole[: len(cut)] == cut and len(cut) < len(whole)
    assert loaded.decode(cut[start:]).strip() == "yes"


def test_an_answer_that_the_tokenizer_cannot_write_is_refused():
    """It would teach the model to write the unknown token, and the loss would fall to 0 all the same."""
    prompt = [{"role": "user", "content": "Xyz?"}]
    small = models.train_tokenizer("char", 64, ["ab"])
    assert small.unk_token_id in chat.render_prompt(small, prompt), "a question may hold what it likes"
    assert chat.render_answer(small, prompt, "ba", "r1")
    with pytest.raises(
        DataError, match=r"record r1: the tokenizer has no token for ' 1G' of the answer.*extra_characters"
    ):
        chat.render_answer(small, prompt, "aG 1", "r1")
    wide = models.train_tokenizer("char", 64, ["ab"], extra_characters="G 1")
    tokens, start = chat.render_answer(wide, prompt, "aG 1", "r1")
    assert chat.completion_text(wide, tokens[start:]) == "aG 1"
    with pytest.raises(ValueError, match="extra_characters is for kind: char"):
        Tokenizer.model_validate({"kind": "bpe", "extra_characters": "G"})


def test_an_unknown_token_that_is_the_end_token_says_nothing():
    """GPT-2's unknown token is its end token."""
    small = models.train_tokenizer("char", 64, ["ab"])
    small.unk_token = small.eos_token
    assert chat.render_answer(small, [{"role": "user", "content": "a"}], "b", "r1")
