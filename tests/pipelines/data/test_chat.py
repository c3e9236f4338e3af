"""System prompts in front of a conversation."""

from __future__ import annotations

from pipelines.data.records import Role


def test_a_prior_goes_in_front():
    from pipelines.data.chat import with_system_prompt

    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2?"}]
    assert with_system_prompt(asked, "Think.")[0]["content"] == "Think.\n\nBe short."
    assert with_system_prompt(asked, None) is asked
    assert Role.TEACHER_FORCED == 5, "stored rows hold the number"
