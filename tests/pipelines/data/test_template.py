"""Templates that hide messages, do not end or print without end; control tokens and think tags of tokenizers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import chat_families
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, ModelError
from pipelines.contract.model_settings import Model
from pipelines.data import chat, control, template
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.sft.pack import document, text_documents
from tasks.preflight import probe

USER = {"role": "user", "content": "Which animal barks?"}
PLAIN = models.train_tokenizer("bpe", 300, ["ab"])
SHOWN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def with_template(text: str):
    tokenizer = models.train_tokenizer("bpe", 300, ["ab"])
    tokenizer.chat_template = text
    return tokenizer


SLOW = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages[0]['content'] }}",
    SHOWN
    + "{% if messages | length > 2 %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}",
    SHOWN + "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    SHOWN + "{{ (9 ** (9 ** 9)) | string }}",
]
QUICK = [
    "{{ 'x' * 3000000000 }}",
    SHOWN + "{% if tools %}{{ 'x' * 3000000000 }}{% endif %}",
    SHOWN + "{% if messages[0].role == 'system' %}{{ 'x' * 3000000000 }}{% endif %}",
    SHOWN
    + "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    SHOWN + "{% for i in range(99999) %}{{ 'a longer text than this program can want' * 9 }}{% endfor %}",
    SHOWN + "{{ '%3000000000d' | format(1) }}",
    SHOWN + "{{ messages[-1]['content'] * 100000 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
]


@pytest.mark.hostile
@pytest.mark.parametrize("text", [*QUICK, *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
def test_a_template_without_end_is_refused_by_plan(text):
    began = time.monotonic()
    fields = dict.fromkeys(probe.TEMPLATE) | {
        "chat_template": text,
        "chat_template_kwargs": {},
        "chat_template_date": "2025-01-01",
    }
    config = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    question = {"ask": "fresh", "architecture": "llama", "config": config, "vocabulary": 64, **fields}
    told = probe.answer(question)
    assert "model.chat_template" in told.get("problem", ""), told
    assert time.monotonic() - began < template.WALL_S + 30


@pytest.mark.parametrize(
    "text", ["hello", "{{ bos_token }}", "{% for m in messages %}{{ m['role'] }}{% endfor %}", "{% if x %}"]
)
def test_a_template_that_shows_no_message_is_refused_where_the_tokenizer_is_loaded(tmp_path, text):
    with_template(SHOWN).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(text)
    with pytest.raises(ModelError, match=r"model\.chat_template: "):
        models.load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"model\.chat_template: "):
        models.load_tokenizer(tmp_path, Model(path=str(tmp_path), chat_template=text + "{# #}"))


def test_a_part_that_nothing_shows_is_refused_with_its_name():
    tokenizer = with_template("{{ messages[-1]['content'] }}")
    prompt = [USER, {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Sure?"}]
    with pytest.raises(chat.TemplateRefusal, match=r"user, assistant, user \(it does not show message 1 \(user\)\)"):
        chat.render_prompt(tokenizer, prompt)


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
@pytest.mark.parametrize("name", ["tested: qwen3", "chatml", "tested: phi3"])
def test_reasoning_in_a_field_of_its_own_is_shown(name, field):
    tokenizer = chat_families.tokenizer(name)
    said = {"role": "assistant", "content": "A dog.", field: "Barking is for dogs."}
    text = chat.render_text(tokenizer, [USER, said], generation_prompt=False)
    assert "<think>\nBarking is for dogs.\n</think>\n\nA dog." in text


def test_replies_in_a_row_are_one_user_message_where_there_is_no_role_for_them():
    tokenizer = chat_families.tokenizer("gemma")
    replies = [{"role": "tool", "content": "7"}, {"role": "tool", "content": "9"}]
    text = chat.render_text(tokenizer, [USER, {"role": "assistant", "content": "call"}, *replies])
    assert (
        "<start_of_turn>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n9\n</tool_response><end_of_turn>"
        in text
    )


def test_reasoning_against_a_prompt_that_closes_it_is_refused():
    from benchmarks.families import FAMILIES, tokenizer_of

    tokenizer = tokenizer_of(FAMILIES["qwen3"])
    models.set_template_options(tokenizer, Model(path="x", chat_template_kwargs={"enable_thinking": False}))
    info = {"solution": "<think>\nBarking.\n</think>\n\nA dog."}
    problem = Problem(uid="1", source="s", licence="x", prompt=[USER], answer="x", verifier="exact", info=info)
    with pytest.raises(DataError, match="closed think block"):
        document(problem, "solution", tokenizer)


def test_earlier_answers_without_an_end_are_not_trained():
    tokenizer = chat_families.tokenizer("no end token")
    prompt = [USER, {"role": "assistant", "content": "A dog."}, {"role": "user", "content": "Sure?"}]
    problem = Problem(uid="1", source="s", licence="x", prompt=prompt, answer="Yes.", verifier="exact", info={})
    assert document(problem, "answer", tokenizer).tokens[-1] == tokenizer.eos_token_id
    with pytest.raises(ModelError, match="Use turns: last"):
        document(problem, "answer", tokenizer, "all")


def special_tags(*tags: str):
    tokenizer = models.train_tokenizer("bpe", 300, ["ab"])
    tokenizer.add_special_tokens({"additional_special_tokens": list(tags)}, replace_extra_special_tokens=False)
    return tokenizer


@pytest.mark.parametrize(
    "start, end", [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>")]
)
def test_think_tags_that_are_special_tokens_stay_in_the_text(start, end):
    tokenizer = special_tags(start, end)
    ids = tokenizer(f"{start}hm{end}yes<|end|>", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_tokens_to_ids(end) in ids
    assert chat.completion_text(tokenizer, ids) == "<think>hm</think>yes"
    assert chat.after_thinking(chat.completion_text(tokenizer, ids)) == "yes"
    assert "hm" not in chat.after_thinking(chat.completion_texts(tokenizer, [ids, []])[0])


def test_answers_are_decoded_in_one_place():
    """Whoever leaves out special tokens by itself loses the tags of reasoning of the models that have them as such."""
    root = Path(control.__file__).parents[2]
    files = [path for room in ("pipelines", "evaluation", "tasks", "flows") for path in (root / room).rglob("*.py")]
    own = {path.relative_to(root).as_posix() for path in files if "skip_special_tokens=True" in path.read_text()}
    assert own == {"pipelines/data/control.py", "tasks/export/card.py"}, (
        "ours, and the example for transformers in a model's card"
    )


def test_think_tags_of_data_become_the_tokens_that_a_model_has_for_them():
    tokenizer = special_tags("<think>", "</think>")
    ids, start = chat.render_answer(tokenizer, [USER], "<think>hm</think>yes", "r")
    assert {tokenizer.convert_tokens_to_ids(t) for t in ("<think>", "</think>")} <= set(ids[start:])


@given(st.lists(st.sampled_from(["<|end|>", "<|user|>", "<|", "end", "|>", "ab ", "\ufdd0", "é", "<"]), max_size=8))
def test_no_text_of_the_data_makes_a_control_token(parts):
    tokenizer = PLAIN
    ids = control.encode_text(tokenizer, "".join(parts))
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == "".join(parts).replace("\ufdd0", "")


def test_a_special_token_beyond_the_embedding_is_text_and_a_think_tag_beyond_it_is_refused(tmp_path):
    tokenizer = special_tags("<x0>")
    beyond = tokenizer.convert_tokens_to_ids("<x0>")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": beyond}))
    tokenizer.save_pretrained(tmp_path)
    loaded = models.load_tokenizer(tmp_path)
    prompt = [{"role": "user", "content": "palindrome <x0>"}]
    ids, _ = chat.render_answer(loaded, prompt, "the <x0>", "r")
    assert max(ids) < beyond and loaded.decode(ids).count("<x0>") == 2
    raw = Problem(
        uid="1", source="s", licence="x", prompt=[], answer="", verifier="exact", info={"text": "one <x0> two"}
    )
    (made,) = text_documents(raw, loaded, 100)
    assert max(made.tokens) < beyond and loaded.decode(made.tokens) == "one <x0> two<|end|>"
    other = special_tags("</think>")
    other.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(other) - 1}))
    with pytest.raises(ModelError, match=r"</think>"):
        models.load_tokenizer(tmp_path)


def test_a_raw_text_keeps_the_tokens_around_it():
    tokenizer = chat_families.tokenizer("tested: llama")
    for text in ("ab", "ab <|eot_id|> ab"):
        raw = Problem(uid="1", source="s", licence="x", prompt=[], answer="", verifier="exact", info={"text": text})
        (made,) = text_documents(raw, tokenizer, 100)
        assert made.tokens[0] == tokenizer.bos_token_id and made.tokens[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(made.tokens[1:-1]) == text
        assert tokenizer.eos_token_id not in made.tokens[1:-1]
