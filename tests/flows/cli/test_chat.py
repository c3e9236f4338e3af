"""A conversation through pipes: a reply for each line, earlier lines remembered, a new beginning, and options that cannot be."""

from __future__ import annotations

import io
import json

import exported
import pytest

from flows.cli import chat, main
from pipelines.engine.chat_model import ChatModel


@pytest.fixture
def talk(home, monkeypatch, capsys):
    """The command line with these lines on its standard input; returns what it prints."""
    exported.run()

    def run(lines: str, *options: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        with pytest.raises(SystemExit) as ended:
            main.main(["chat", "mine", "--max-tokens", "6", *options])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out

    return run


def test_a_reply_a_line(talk):
    first, second, third, rest = talk("abc\n\nxyz\n/new\nabc", "--temperature", "0").split("\n")
    assert rest == "" and first and first == third
    assert talk("abc\n", "--temperature", "0") == f"{first}\n"
    assert talk("xyz\n", "--temperature", "0") != f"{second}\n", "the lines before it count"
    assert talk("", "--temperature", "0") == ""


def test_draws_follow_the_seed_and_the_system_message_the_model(talk):
    assert talk("abc\n", "--seed", "3") == talk("abc\n", "--seed", "3") != talk("abc\n", "--seed", "4")
    greedy = talk("abc\n", "--temperature", "0")
    assert greedy == talk("abc\n", "--temperature", "0", "--system", exported.SYSTEM)
    assert greedy != talk("abc\n", "--temperature", "0", "--system", "be brief")


def test_pieces_are_the_reply(home):
    """Streamed, the greedy reply is the one that is drawn at once; each piece comes as soon as its token."""
    from pipelines.contract.sampling import Sampling
    from tasks.export import trained

    exported.run()
    model = trained.find("mine")
    speaker = ChatModel(str(model.folder), model.settings)
    counts = []
    for letters in ("abc", "xyz", "racecar", "0", "q 1"):
        conversation = [{"role": "user", "content": letters}]
        pieces = [*speaker.stream(conversation, Sampling(temperature=0, max_tokens=8), 0)]
        ((whole, _),) = speaker.reply([conversation], temperature=0, max_tokens=8)
        assert "".join(pieces) == whole and all(pieces)
        counts.append(len(pieces))
    assert max(counts) > 2
    too_long = [{"role": "user", "content": "a" * 5000}]
    assert [*speaker.stream(too_long, Sampling(max_tokens=8), 0)] == []


@pytest.mark.parametrize(
    ("options", "field"), [(["--temperature", "-1"], "--temperature"), (["--top-p", "2"], "--top-p")]
)
def test_options_that_cannot_be(home, capsys, options, field):
    exported.run()
    with pytest.raises(SystemExit) as ended:
        main.main(["chat", "mine", *options])
    assert ended.value.code == 2 and field in capsys.readouterr().err


def test_somebody_at_a_terminal_is_asked(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter(["abc", " ", "/new"])

    def ask(prompt: str) -> str:
        assert prompt == chat.PROMPT
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", ask)
    assert [*chat._lines()] == ["abc", "/new"] and json.dumps(chat.AGAIN)
