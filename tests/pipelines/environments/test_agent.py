"""Programs that play the policy: real processes that ask a real endpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import agents
import chat_families
import pytest
import scripted
import toys
import worlds

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.episode import play, play_out
from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import chat
from pipelines.data.records import Role, Stop
from pipelines.engine import models
from pipelines.environments import Unavailable
from pipelines.environments._forms import Late, Limits
from pipelines.tools import call_text

started = partial(worlds.started, "agent")
CALL = call_text("add", {"a": 2, "b": 3})
TASK = {"task": "2 + 3?", "answer": "5"}


def drawn(tokenizer, text):
    return [
        *chat.encode(tokenizer, [text])[0],
        tokenizer.convert_tokens_to_ids(chat.end_of_turn(tokenizer) or tokenizer.eos_token),
    ]


@dataclasses.dataclass
class Sampler:
    """Says one text after the other to each row; log-probabilities count the tokens."""

    tokenizer: object
    texts: list[str]
    turn: int = 0

    def extend(self, prefixes, sampling, generator, *, entropy=False, streams=None):
        text, self.turn = self.texts[self.turn], self.turn + 1
        ids = drawn(self.tokenizer, text)
        return [Completion(list(ids), [-float(i) for i in range(len(ids))], Stop.END, None) for _ in prefixes]


def played(tokenizer, row, texts, rollouts=1, turns=9):
    context = RolloutContext(
        Sampler(tokenizer, texts), Sampling(max_tokens=999), 1, Streams(0), False, version=0, tokenizer=tokenizer
    )
    problem = worlds.problem(row)
    [prompt] = context.render([problem.prompt], [problem.tools])
    return play([RolloutRequest(problem, prompt, 0, rollouts)], context, TurnBudget(turns))


def test_an_episode_with_tools(tmp_path):
    [row] = agents.rows(tmp_path, agents.ADDING, TASK)
    assert (
        row["prompt"] == [{"role": "user", "content": "2 + 3?"}]
        and row["info"]["tools"][0]["function"]["name"] == "add"
    )
    world = started(row)
    step = world.step(f"Sure. {CALL}{CALL}")
    assert step.messages == [{"role": "tool", "content": "5"}] * 2 and (step.role, step.done, step.reward) == (
        "tool",
        False,
        0,
    )
    assert [(call["outcome"], call["text"]) for call in step.calls] == [
        ("ok", "5")
    ] * 2 and step.state == world.state_key()
    copy = worlds.copy_of("agent", world)
    assert copy.step("5") == (last := world.step("5")), "a copy plays the same messages again"
    assert (last.done, last.reward, last.info["status"]) == (True, 1.0, "correct")
    assert world.step("5").done, "an episode that has ended stays ended"
    wrong = started(row).step("6")
    assert (wrong.done, wrong.reward, wrong.info["success"]) == (True, 0.0, False)
    broken = started(row).step("<tool_call>5</tool_call>")
    assert broken.info["status"] == "incorrect" and broken.calls[0]["outcome"] == "malformed", (
        "the program reads it as text"
    )


def test_turns_are_recorded_token_by_token(tmp_path):
    tokenizer = models.train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    [row] = agents.rows(tmp_path, agents.ADDING, TASK)
    rows = played(tokenizer, row, [CALL, "5"], rollouts=3)
    for each in rows:
        assert each.correct and each.stop == Stop.ENVIRONMENT and each.turn_reward == [0.0, 1.0]
        said, start = drawn(tokenizer, CALL), each.role.index(Role.POLICY)
        assert each.tokens[start : start + len(said)] == said, "tokens out are tokens in"
        assert each.logp_old[start : start + len(said)] == [-float(i) for i in range(len(said))]
        text = f"<|begin|><|tools|>add(a, b)<|user|>2 + 3?<|assistant|>{CALL}<|end|><|tool|>5<|assistant|>5<|end|>"
        assert tokenizer.decode(each.tokens) == text


def words(draw):
    return " ".join(
        "".join(draw.choice("abcxyz019,.") for _ in range(draw.randint(1, 6))) for _ in range(draw.randint(1, 5))
    )


FAMILIES = ("chatml", "smollm2", "zephyr", "llama2", "tested: qwen2", "tested: qwen3")


@pytest.mark.slow
def test_recorded_ids_are_those_of_the_whole_conversation(tmp_path):
    """Wherever a template writes answers as they were drawn and earlier turns as at first."""
    stable = []
    for name in FAMILIES:
        tokenizer, draw = chat_families.tokenizer(name), random.Random(name)
        first, *then = [[{"role": "user", "content": words(draw)}] for _ in range(3)]
        [row] = agents.rows(tmp_path, agents.FOLLOWING, {"task": json.dumps({"first": first, "then": then})})
        texts = [words(draw) for _ in range(3)]
        [recorded] = played(tokenizer, row, texts)
        assert recorded.stop == Stop.ENVIRONMENT and len(recorded.turn_reward) == 3
        prompts, conversation = [], list(first)
        for text, added in zip(texts, [*then, []], strict=True):
            prompts.append(chat.render_prompt(tokenizer, conversation) + drawn(tokenizer, text))
            conversation += [{"role": "assistant", "content": text}, *added]
        whole, _ = chat.render_answer(tokenizer, conversation[:-1], texts[-1], "r")
        if all(whole[: len(prompt)] == prompt for prompt in prompts):
            assert whole[: len(recorded.tokens)] == recorded.tokens, name
            stable.append(name)
    assert {"chatml", "smollm2", "zephyr", "tested: qwen2"} <= {*stable}


def test_limits_of_a_request_cut_the_message(tmp_path):
    """At the first token that completes a stop text, or at the most tokens; the program is told which."""
    say = (
        agents.ASK
        + """
choice = ask([{"role": "user", "content": task}], **json.loads(task))
print(json.dumps([choice["message"]["content"], choice["finish_reason"]]))
"""
    )
    for more, content, finish, count in (
        ({"max_tokens": 3}, "abc", "length", 3),
        ({"stop": ["de", "fg"]}, "abc", "stop", 5),
        ({"stop": "nothing", "max_completion_tokens": 99}, "abcdefgh", "stop", 9),
        ({"stop": "de", "max_tokens": 4}, "abcd", "length", 4),
    ):
        answer = json.dumps([content, finish])
        [row] = agents.rows(tmp_path, say, {"task": json.dumps(more), "answer": answer})
        [recorded] = played(scripted.tokenizer(), row, ["abcdefgh"])
        assert recorded.correct and recorded.role.count(Role.POLICY) == count, more


@pytest.mark.slow
def test_what_the_end_is_worth(tmp_path):
    tell = (
        agents.ASK
        + """
content = ask([{"role": "user", "content": task}])["message"]["content"]
open("out.txt", "w").write("0.25")
print(content)
sys.exit(3 if content == "fail" else 0)
"""
    )

    [row] = agents.rows(tmp_path, tell, {"task": "q", "answer": "0.5"})

    def ends(message, **config):
        problem = worlds.problem({**row, "info": {**row["info"], "settings": {**row["info"]["settings"], **config}}})
        world = environments.make("agent")
        world.reset(problem)
        step = world.step(message)
        assert step.done
        return step.reward, step.info["success"], step.info["status"]

    assert ends("0.5") == (1.0, True, "correct") and ends("1") == (0.0, False, "incorrect")
    assert ends("fail") == (0.0, False, "unparsable"), "a program that fails has earned nothing"
    assert ends("0.5", result="reward") == (0.5, False, "incorrect")
    assert ends("0.5", result="reward", success_at=0.5) == (0.5, True, "correct")
    assert ends("nan", result="reward") == ends("much", result="reward") == (0.0, False, "unparsable")
    assert ends("x", result="reward", result_file="out.txt") == (0.25, False, "incorrect")
    assert ends("x", result="reward", result_file="no.txt") == (0.0, False, "unparsable")
    assert ends("x", result="exit_code") == (1.0, True, "correct") and ends("fail", result="exit_code")[0] == 0.0
    assert ends("x" * 3000, output_kb=2) == (0.0, False, "unparsable"), "it prints more than it may"


REWRITING = (
    agents.ASK
    + """
message = ask([{"role": "user", "content": task}])["message"]
other = {"role": "user", "content": "more"}
if task == "rewrites":
    ask([{"role": "user", "content": "In short: " + task}, message, other])
if task == "shortens":
    ask([other])
if task == "edits":
    ask([{"role": "user", "content": task}, {"role": "assistant", "content": "no"}, other])
if task == "twice":
    ask([{"role": "user", "content": task}])
if task == "side by side":
    import threading
    threading.Thread(target=ask, args=([{"role": "user", "content": task}, message, other],)).start()
    time = __import__("time").sleep(0.3)
    ask([{"role": "user", "content": task}, message, {"role": "user", "content": "other"}])
if task == "several":
    ask([{"role": "user", "content": task}, message, other], n=2)
if task == "tools":
    ask([{"role": "user", "content": task}, message, other], tools=[{"type": "function", "function": {"name": "f"}}])
if task == "slow":
    __import__("time").sleep(60)
"""
)


@pytest.mark.parametrize("task", ["rewrites", "shortens", "edits", "twice", "side by side"])
def test_another_conversation_begins_anew(tmp_path, task):
    """Tokens of the earlier one stay as they were; what the program sends is all that the policy reads."""
    [row] = agents.rows(tmp_path, REWRITING, {"task": task})
    world = started(row)
    step = world.step("hm")
    if task == "side by side":
        assert not step.restart and step.messages == [{"role": "user", "content": "more"}]
        time.sleep(0.6)  # the second request comes while the first one waits
        step = world.step("so")
    asked, more, so = ({"role": "user", "content": text} for text in (task, "more", "other"))
    said = {"role": "assistant", "content": "hm"}
    assert (
        step.restart
        and step.messages
        == {
            "rewrites": [{"role": "user", "content": f"In short: {task}"}, said, more],
            "shortens": [more],
            "edits": [asked, {"role": "assistant", "content": "no"}, more],
            "twice": [asked],
            "side by side": [asked, said, so],
        }[task]
    )
    assert worlds.copy_of("agent", world).step("on") == world.step("on")


def test_conversations_are_rows(tmp_path):
    """Each with the tokens that the policy read and drew, and the whole episode's reward."""
    [row] = agents.rows(tmp_path, REWRITING, {"task": "rewrites"}, result="exit_code")
    problem, texts = worlds.problem(row), ["hm", "so"]
    sampler = scripted.Sampler(lambda prefix, number: texts["In short" in prefix])
    tokenizer = scripted.tokenizer()
    context = RolloutContext(sampler, Sampling(max_tokens=99), 1, Streams(0), False, version=0, tokenizer=tokenizer)
    [prompt] = context.render([problem.prompt])
    request = RolloutRequest(problem, prompt, 0, 2)
    rows = play([request], context, TurnBudget(9), split=True)
    again = [
        {"role": "user", "content": "In short: rewrites"},
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "more"},
    ]
    prompts = [prompt, chat.render_prompt(tokenizer, again)]
    for number, each in enumerate(rows):
        own, said = prompts[number % 2], scripted.ids(texts[number % 2])
        assert each.tokens == [*own, *said, tokenizer.eos_token_id] and each.turn_reward == [1.0]
        assert each.role == [Role.PROMPT] * len(own) + [Role.POLICY] * (len(said) + 1) and each.turn == [-1] * len(
            own
        ) + [0] * (len(said) + 1)
        assert (each.score, each.correct, each.text, each.group) == (1.0, True, texts[number % 2], 0)
        assert each.prompt == (None, again)[number % 2]
    assert len(rows) == 4 and sampler.calls[1].prefixes == [scripted.show(prompts[1])] * 2, (
        "nothing is read of what was before"
    )
    whole = play([request], context, TurnBudget(9))
    assert len(whole) == 2 and all(each.turn_reward == [0.0, 1.0] and len(each.sampled()) == 6 for each in whole), (
        "evaluation counts all"
    )
    [short, _] = play([request], context, TurnBudget(1), split=True)
    assert (short.stop, short.score) == (Stop.TURNS, 0.0), "turns of all conversations count"
    [alone] = play_out([dataclasses.replace(request, rollouts=1)], context, TurnBudget(9))
    assert alone.status == "environment_failed", "not where a row has one conversation"


@pytest.mark.parametrize(("task", "told"), [("several", "several completions"), ("tools", "other tools")])
def test_what_a_row_cannot_hold_ends_the_episode(tmp_path, task, told):
    """Nothing of it is scored, and the reason is told."""
    [row] = agents.rows(tmp_path, REWRITING, {"task": task})
    world = started(row)
    with pytest.raises(Unavailable, match=told):
        world.step("hm")
    assert not living(world)


def living(world):
    """Whether something of the program is still there a moment later."""
    assert world._run is None
    until = time.monotonic() + 5
    while time.monotonic() < until and processes():
        time.sleep(0.02)
    return processes()


def processes():
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and "program.py" in words_of(pid)]


def words_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def test_a_slow_program_is_ended(tmp_path):
    [row] = agents.rows(tmp_path, REWRITING, {"task": "slow"}, timeout_s=0.8)
    world = started(row)
    with pytest.raises(Late, match="the program takes longer"):
        world.step("hm")
    assert not living(world)


def test_a_dropped_episode_ends_its_program(tmp_path):
    """The turn budget may be spent before the program is done."""
    [row] = agents.rows(tmp_path, agents.ADDING, TASK)
    [recorded] = played(scripted.tokenizer(), row, [CALL] * 3, turns=2)
    assert recorded.stop == Stop.TURNS and recorded.score == 0.0
    until = time.monotonic() + 5
    while processes() and time.monotonic() < until:
        time.sleep(0.02)
    assert not processes()


def test_a_program_that_starts_otherwise_stops_the_run(tmp_path):
    dated = agents.ASK + "import time\nask([{'role': 'user', 'content': task + str(time.time_ns())}])\n"
    [row] = agents.rows(tmp_path, dated, TASK)
    world = started(row)
    with pytest.raises(RecipeError, match="another one than when the data were made"):
        world.step("5")


def test_a_copy_that_plays_otherwise_is_refused(tmp_path):
    dated = agents.FOLLOWING.replace("*(added or [])", "*({**m, 'content': str(os.getpid())} for m in added or [])")
    plan = {"first": [{"role": "user", "content": "q"}], "then": [[{"role": "user", "content": ""}]]}
    [row] = agents.rows(tmp_path, dated, {"task": json.dumps(plan)})
    world = started(row)
    world.step("5")
    with pytest.raises(Unavailable, match="something else when an episode is played again"):
        worlds.copy_of("agent", world).step("6")


def test_an_expert_demonstrates(tmp_path):
    (tmp_path / "expert.py").write_text(
        f"def answer(messages):\n    return '5' if messages[-1]['role'] == 'tool' else {CALL!r}\n"
    )
    config = {"expert": f"{tmp_path}/expert.py:answer", "demonstrations": True}
    rows = agents.rows(tmp_path, agents.ADDING, TASK, TASK, **config)
    assert len(rows) == 2, "as many rows as were asked for"
    first, second = rows
    assert first["info"]["solution"] == CALL and second["info"]["solution"] == "5" and second["info"]["tools"]
    assert second["prompt"] == [
        *first["prompt"], {"role": "assistant", "content": CALL}, {"role": "tool", "content": "5"}
    ]  # fmt: skip
    with pytest.raises(RecipeError, match="begins within an episode"):
        started(second)


def test_what_cannot_be_played_is_told_when_data_are_made(tmp_path):
    for text, told in (
        ("import sys\nsys.exit('no task')", "asks nothing: it ends with exit code 1 .no task."),
        (agents.ASK + "ask([{'role': 'user', 'content': task}], n=4)", "several completions"),
        (agents.ASK + "ask([{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {}}]}])", "not text only"),
    ):
        with pytest.raises(RecipeError, match=told):
            agents.rows(tmp_path, text, TASK)


@pytest.mark.slow
def test_the_same_seed_makes_the_same_rows(tmp_path):
    several = [{"task": f"{i} + 1?", "answer": str(i + 1)} for i in range(12)]
    rows = agents.rows(tmp_path, agents.ADDING, *several)
    assert rows == agents.rows(tmp_path, agents.ADDING, *several)
    assert [row["info"]["task"] for row in rows] != [row["task"] for row in several], "in an order of the seed's"
    config = {"command": rows[0]["info"]["settings"]["command"], "tasks": {"environment": "worked_sums", "most": 9}}
    with pytest.raises(RecipeError, match="make 12 rows, 13 are asked for"):
        list(environments.problems("agent", 13, 0, {**config, "tasks": agents.tasks(tmp_path, *several)}))
    asked = list(environments.problems("agent", 3, 1, config))
    plain = list(environments.problems("worked_sums", 3, 1, {"most": 9}))
    assert [row["info"]["task"] for row in asked] == [row["prompt"][-1]["content"] for row in plain]
    assert [row["answer"] for row in asked] == [row["answer"] for row in plain]


def test_limits_are_known_before_the_program_is_started(tmp_path):
    plan = {"first": [{"role": "user", "content": "q"}], "then": [], "more": {"max_tokens": 7, "stop": "x"}}
    [row] = agents.rows(tmp_path, agents.FOLLOWING, {"task": json.dumps(plan)})
    assert started(row).limits() == Limits(7, ("x",))


@pytest.mark.slow
def test_the_openai_client_plays(tmp_path):
    """With a stream and without; it sends its last message twice, as a client does that has lost the reply."""
    pytest.importorskip("openai")
    text = """
import sys
from openai import OpenAI

client = OpenAI()
assert [model.id for model in client.models.list()] == ["policy"]
messages = [{"role": "user", "content": sys.stdin.read()}]
reply = client.chat.completions.create(model="policy", messages=messages)
said = reply.choices[0].message.content
assert reply.usage.completion_tokens == len(said) + 1, reply.usage
messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
for attempt in ("0", "1"):
    told = {"x-stainless-retry-count": attempt}
    chunks = client.chat.completions.create(model="policy", messages=messages, stream=True, extra_headers=told)
    print("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
"""
    [row] = agents.rows(tmp_path, text, {"task": "q", "answer": "two"})
    [recorded] = played(scripted.tokenizer(), row, ["one", "two"])
    assert recorded.correct and scripted.parts(recorded)[1:] == [
        (Role.POLICY, "one"), (Role.ENVIRONMENT, "go on"), (Role.POLICY, "two")
    ]  # fmt: skip


@pytest.mark.parametrize("preload", [[], ["langchain_openai", "langgraph.prebuilt"]], ids=["alone", "preloaded"])
def test_an_agent_of_langgraph_plays(tmp_path, preload):
    """The recipe's, in a Python of its own: a call, its result and the last word are one row."""
    python = os.environ.get("WHETSTONE_LANGGRAPH")
    if not python:
        pytest.skip("WHETSTONE_LANGGRAPH names no Python that has LangGraph (make test-ecosystem)")
    config = {
        "command": [python, str(toys.ROOT / "recipes" / "agents" / "langgraph_calculator.py")],
        "tasks": agents.tasks(tmp_path, {"task": "2 and 3: what is the sum?", "answer": "5"}),
        "preload": preload,
    }
    [row] = environments.problems("agent", 1, 0, config)
    assert row["info"]["tools"][0]["function"]["name"] == "calculate"
    call = call_text("calculate", {"sign": "+"})
    tokenizer = models.train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    [recorded] = played(tokenizer, row, [call, "done"])
    assert recorded.correct and recorded.turn_reward == [0.0, 1.0]
    [failed] = played(tokenizer, row, [call_text("calculate", {"sign": "-"}), "done"])
    assert not failed.correct and failed.score == 0.0


def test_curl_plays(tmp_path):
    if not os.path.exists("/usr/bin/curl"):
        pytest.skip("there is no curl")
    script = """
body=$(printf '{"model": "policy", "messages": [{"role": "user", "content": "%s"}]}' "$1")
curl -s "$OPENAI_BASE_URL/chat/completions" -H "Content-Type: application/json" -d "$body" | sed 's/.*"content": "\\([^"]*\\)".*/\\1/'
"""
    (tmp_path / "agent.sh").write_text(script)
    config = {
        "command": ["sh", str(tmp_path / "agent.sh"), "{task}"],
        "tasks": agents.tasks(tmp_path, {"task": "q?", "answer": "yes"}),
    }
    [row] = environments.problems("agent", 1, 0, config)
    assert row["prompt"] == [{"role": "user", "content": "q?"}] and started(row).step("yes").reward == 1.0


def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    """By SIGKILL, of a program that has left its group with a child."""
    text = (
        agents.ASK
        + """
import subprocess
subprocess.Popen(["sleep", "77.5"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
ask([{"role": "user", "content": task}])
"""
    )
    [row] = agents.rows(tmp_path, text, TASK)
    player = f"""
import json, sys, time
sys.path[:0] = {sys.path!r}
import worlds
world = worlds.started("agent", json.loads({json.dumps(row)!r}))
world._begun()
print("begun", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", player], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    assert processes() and sleeping()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 5
    while (processes() or sleeping()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not processes() and not sleeping()


def sleeping():
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and "sleep\x0077.5" in words_of(pid)]
