"""One vLLM server: requests over HTTP, what it says of itself, and what it is refused for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import Interrupted
from pipelines.base.project import page
from pipelines.base.secrets import authorization
from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.data import marks
from pipelines.data.records import Stop
from pipelines.engine import server_images
from pipelines.engine.server_process import EXTENSION, ServerProcess
from pipelines.recipe.server import Server

if TYPE_CHECKING:
    import httpx

PATIENCE = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts while a server does not answer."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention heads that vLLM 0.32's CPU kernels know."""


class Unreachable(Exception):
    """The server stays away, or fails at what it should do."""


class Endpoint:
    """A server that decodes.

    Args:
        settings: timeout, key and name.
        address: where it is; None for one that the stage runs.
        process: the one that this process runs.
        socket: of one that another process of the stage runs.
        name: of that one.
    """

    def __init__(
        self,
        settings: Server,
        *,
        address: str | None = None,
        process: ServerProcess | None = None,
        socket: Path | None = None,
        name: str = "",
    ) -> None:
        import httpx

        self.settings, self.process, self.address = settings, process, address
        self.socket = process.socket if process else socket
        self.name = address or (f"the server of {process.log.name}" if process else name)
        self.alive = True
        """Whether requests go to it; a dead one is tried again at the next push."""
        self.under_way = 0
        """Requests it is working on."""
        self.about: dict[str, Any] | None = None
        """What it says of itself, section by section; empty where it does not say."""
        self.reader: marks.Reader | None = None
        """Of a model that sees, what reads its images."""
        self.adapter = ""
        """Name under which it has this step's LoRA adapters; empty where it is sent whole weights."""
        self.client = httpx.Client(
            base_url=address or "http://server",
            timeout=settings.timeout_s,
            headers=authorization(settings.api_key_env, "sampler", Interrupted),
            limits=httpx.Limits(max_connections=None),
            transport=httpx.HTTPTransport(uds=str(self.socket), limits=httpx.Limits(max_connections=None))
            if self.socket
            else None,
        )

    def reported(self, section: str, name: str, default: Any = None) -> Any:
        """A field of the server's configuration, such as ("device_config", "device")."""
        part = (self.about or {}).get(section)
        value = part.get(name) if isinstance(part, dict) else None
        return default if value is None else value

    @property
    def field(self) -> str:
        """Of the recipe, where the server comes from."""
        return "sampler.serve" if self.socket else "sampler.url" if self.name == self.settings.url else "sampler.urls"

    @property
    def model(self) -> str:
        """The model's name in requests: the adapters', or the whole model's."""
        if self.adapter:
            return self.adapter
        served = self.reported("model_config", "served_model_name")
        served = served[0] if isinstance(served, list) and served else served
        return self.settings.model or served or str(self.settings.weights)

    @property
    def dtype(self) -> str:
        """What it computes in, such as "float32"; "" where it does not say."""
        return str(self.reported("model_config", "dtype", "")).removeprefix("torch.")

    @property
    def on_cpu(self) -> bool:
        """Whether it is a CPU build."""
        return self.reported("device_config", "device") == "cpu"

    @property
    def seeds(self) -> bool:
        """Whether requests carry a seed. A CPU build with chunked prefill dies of one ("CPU Generator does not use offset")."""
        if self.settings.seeds is not None:
            return self.settings.seeds
        return not (self.on_cpu and self.reported("scheduler_config", "enable_chunked_prefill", True))

    @property
    def reload_method(self) -> str:
        """The worker's method that reads the weights folder again."""
        extended = str(self.reported("parallel_config", "worker_extension_cls", "")).endswith(EXTENSION)
        return "whetstone_reload" if extended else "reload_weights"

    def ready(self) -> bool:
        """Whether it answers now."""
        import httpx

        try:
            return self.client.get("/health", timeout=min(5.0, self.settings.timeout_s)).status_code < 500
        except httpx.RequestError:
            return False

    def back(self) -> bool:
        """Whether it answers now, and completions too."""
        try:
            return self.ready() and not self.paused()
        except Unreachable:
            return False

    def wait_until_ready(self, seconds: float) -> None:
        """Wait for a server of our own to come up.

        Raises:
            Interrupted: it ended, or did not answer in time; with what its log says.
        """
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while not self.ready():
            late = time.monotonic() > deadline
            if late or not self.process.running:
                how = f"did not answer within sampler.serve.startup_s ({seconds:g} s)" if late else "did not start"
                raise Interrupted(
                    "sampler.serve",
                    f"`{' '.join(self.process.settings.command)}` {how}. Its log {self.process.log} says:\n  {self.process.why()}",
                )
            time.sleep(0.2)

    def examine(self, config: Any, patience: tuple[float, ...] = (), *, lora_rank: int = 0) -> None:
        """Ask the server for its configuration, and refuse what would give wrong log-probabilities or end it.

        Args:
            config: the model's, of transformers.
            patience: seconds before each further attempt.
            lora_rank: of the adapters that it will be sent; 0 where it is sent whole weights.

        Raises:
            Unreachable: no answer.
            Interrupted: with the option to start it with, or because it is no vLLM server.
        """
        if self.paused(patience):
            self._refuse(
                "it is paused, as a server is whose weights were replaced in part when a run ended", "Start it again."
            )
        sections = self._get("/server_info?config_format=json", patience).get("vllm_config")
        self.about = sections if isinstance(sections, dict) else {}
        mode = self.reported("model_config", "logprobs_mode", "processed_logprobs")
        quantization = self.reported("model_config", "quantization")
        replicas = self.reported("parallel_config", "data_parallel_size", 1)
        text = config.get_text_config()
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if mode != "processed_logprobs":
            self._refuse(f"its --logprobs-mode is {mode}", "Start it with --logprobs-mode processed_logprobs.")
        if quantization:
            self._refuse(f"it quantizes the weights ({quantization})", "Start it without --quantization.")
        if isinstance(replicas, int) and replicas > 1:
            self._refuse(
                f"it is {replicas} replicas behind one address, of which a check reaches one",
                "Start one server per replica and list them in sampler.urls.",
            )
        if self.on_cpu and head not in CPU_HEAD_SIZES:
            self._refuse(
                f"its CPU kernels do not know attention heads of {head}, and it would end at the first request",
                f"Heads of {', '.join(map(str, CPU_HEAD_SIZES))} are known.",
            )
        if self.reader is not None and (why := server_images.refusal(self._get("/openapi.json"))) is not None:
            self._refuse(f"the model sees images, and {why}", "Start vLLM 0.32 or later with --enable-scale-out.")
        if lora_rank and self.about:
            self._examine_lora(lora_rank)
        elif self.on_cpu and text.tie_word_embeddings and self.reload_method == "reload_weights":
            self._refuse(
                "a CPU build keeps its packed copy of a tied output head when it reloads weights",
                f"Start it with --worker-extension-cls {EXTENSION} ({page('servers')}), or set serve: true.",
            )

    def _examine_lora(self, rank: int) -> None:
        most = self.reported("lora_config", "max_lora_rank", 0)
        options = f"--enable-lora --max-lora-rank {rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        if not most:
            self._refuse("it takes no LoRA adapters", f"Start it with {options}.")
        if rank > int(most):
            self._refuse(
                f"it takes adapters up to rank {most}, and rlvr.lora.rank is {rank}", f"Start it with {options}."
            )

    def paths(self) -> set[str]:
        """The paths that it answers, as it says itself; none where it does not say."""
        paths = self._get("/openapi.json").get("paths")
        return set(paths) if isinstance(paths, dict) else set()

    def workers(self) -> int:
        """Processes that hold its weights, or a part of them each."""
        return int(self._get("/get_world_size").get("world_size", 1))

    def paused(self, patience: tuple[float, ...] = ()) -> bool:
        """Whether it answers no completions for now.

        Raises:
            Unreachable: no answer.
        """
        return self._get("/is_paused", patience).get("is_paused") is True

    def _get(self, path: str, patience: tuple[float, ...] = ()) -> dict[str, Any]:
        """What a page of the server says; nothing where it has no such page.

        Raises:
            Unreachable: no answer.
        """
        import httpx

        problem = ""
        for _ in attempts(patience):
            try:
                answer = self.client.get(path)
            except httpx.RequestError as error:
                problem = str(error) or type(error).__name__
            else:
                return self._object(answer, path.partition("?")[0]) if answer.status_code == 200 else {}
        raise Unreachable(f"{self.name} does not answer {path.partition('?')[0]} ({problem})")

    def _object(self, answer: httpx.Response, path: str) -> dict[str, Any]:
        """The JSON object that an answer is; an empty one where it has no text.

        Raises:
            Interrupted: it is something else, so another program answers.
        """
        try:
            body = answer.json() if answer.content else {}
        except ValueError:  # no JSON, or not even text
            body = None
        if not isinstance(body, dict):
            log = (
                f"its log {self.process.log}" if self.process else "the address, and what stands in front of the server"
            )
            raise Interrupted(
                self.field,
                f"{self.name} answers {path} with {answer.text[:80]!r}, and a vLLM server answers with a JSON object",
                f"Check {log}.",
            )
        return body

    def _refuse(self, why: str, fix: str) -> None:
        raise Interrupted("sampler", f"{self.name} cannot decode for this run: {why}", fix)

    def reload(self, patience: tuple[float, ...]) -> None:
        """Have it read the weights folder again, and forget cached prefixes."""
        self.post("/collective_rpc", {"method": self.reload_method}, patience)
        self.forget_prefixes(patience)

    def forget_prefixes(self, patience: tuple[float, ...]) -> None:
        """Have it forget cached prefixes, and cached features of images.

        Raises:
            Interrupted: it cannot, because somebody else's requests need them.
        """
        if self.reader is not None:
            self.post(server_images.FORGET, {}, patience)
        for _ in attempts(patience):
            if self.post("/reset_prefix_cache", {}, patience).get("success", True):  # older servers return no status
                return
        raise Interrupted("sampler", f"{self.name} keeps its old prefix cache; something else is using it.")

    def load_adapter(self, name: str, folder: Path, patience: tuple[float, ...]) -> None:
        """Have it load LoRA adapters under a name that it does not know yet, and unload those before them.

        Raises:
            Unreachable: no answer.
            Interrupted: it refuses.
        """
        self.post(
            "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.absolute())}, patience, as_text=True
        )
        before, self.adapter = self.adapter, name
        if before:
            self.post("/v1/unload_lora_adapter", {"lora_name": before}, patience, as_text=True)

    def prompt_logps(self, tokens: list[int], patience: tuple[float, ...]) -> list[float]:
        """Log-probability of each token but the first and places of images, at temperature 1, nats."""
        sampling = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        entries = self._choices(tokens, sampling, patience)[0].get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(tokens):
            raise Interrupted(
                "sampler", f"{self.name} returns no prompt_logprobs, by which its weights are checked after every push."
            )
        return [
            float(entry[str(token)]["logprob"]) if entry and str(token) in entry else float("nan")
            for entry, token in zip(entries[1:], tokens[1:], strict=True)
            if token < marks.FIRST_ID
        ]

    def complete(
        self,
        prompt: list[int],
        count: int,
        sampling: Sampling,
        *,
        seed: int,
        room: int,
        stop: list[int],
        patience: tuple[float, ...],
    ) -> list[Completion]:
        """Several completions of one prompt. vLLM seeds them seed, seed + 1, ...; equal prompts in a list would all be
        seeded alike and answered alike.

        Args:
            room: tokens that fit after the prompt.
            stop: token ids that end a completion.
        """
        body: dict[str, Any] = {
            "n": 1 if sampling.temperature == 0 else count,  # a greedy request may ask for one answer only
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,  # else the server takes what the model's generation_config.json says
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logprobs": 0,
            "stop_token_ids": stop,
            "skip_special_tokens": False,
        }
        if self.seeds:
            body["seed"] = seed
        choices = self._choices(prompt, body, patience)
        if len(choices) != body["n"]:
            raise Interrupted("sampler", f"the server answered {len(choices)} of {body['n']} completions.")
        return [_read(choice, stop) for choice in choices * (count // len(choices))]

    def _choices(
        self, prompt: list[int], sampling: dict[str, Any], patience: tuple[float, ...]
    ) -> list[dict[str, Any]]:
        """The completions that a request asks for, in order; at least one."""
        path, choices = "/v1/completions", None
        if self.reader is not None and server_images.present(prompt):
            path = server_images.ROUTE
            body = {"model": self.model, **server_images.request(prompt, self.reader), "sampling_params": sampling}
            choices = server_images.choices(self.post(path, body, patience), prompt, self.reader, self.name)
        else:
            body = {"model": self.model, "prompt": prompt, "return_token_ids": True, **sampling}
            choices = self.post(path, body, patience).get("choices")
        known = isinstance(choices, list) and all(
            isinstance(c, dict) and isinstance(c.get("index"), int) for c in choices
        )
        if not known or not choices:
            raise Interrupted(
                self.field,
                f"{self.name} answers {path} without a list of `choices`, as a vLLM server would not.",
            )
        return sorted(choices, key=lambda choice: int(choice["index"]))

    def post(
        self, path: str, body: dict[str, Any], patience: tuple[float, ...], *, as_text: bool = False
    ) -> dict[str, Any]:
        """Ask, and ask again while it does not answer.

        Args:
            patience: seconds before each further attempt.
            as_text: it answers with a sentence, which is not looked at.

        Raises:
            Unreachable: no answer, or only errors of its own (5xx).
            Interrupted: it refuses (4xx), sends the request elsewhere (3xx), or answers with something else than a JSON object.
        """
        import httpx

        problem = "dropped meanwhile"
        for attempt in attempts(patience):
            if attempt and not self.alive:
                break
            try:
                answer = self.client.post(path, json=body)
            except httpx.RequestError as error:
                problem = str(error) or type(error).__name__
                if self.process is not None and not self.process.running:
                    break
            else:
                if answer.is_success:
                    return {} if as_text else self._object(answer, path)
                problem = f"status {answer.status_code}: {answer.text[:300]}"
                if answer.status_code < 500:
                    setting = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if as_text else "VLLM_SERVER_DEV_MODE=1"
                    hint = f" It must run with {setting}." if answer.status_code == 404 else ""
                    if answer.has_redirect_location:
                        hint = f" It is elsewhere ({answer.headers['location'][:200]}): correct {self.field}."
                    raise Interrupted("sampler", f"{self.name} refused {path} with {problem}{hint}")
        raise Unreachable(f"{self.name}{path if self.process is None else f' ({path})'} does not answer ({problem})")

    def close(self) -> None:
        """Hang up; a server of our own is stopped."""
        self.client.close()
        if self.process is not None:
            self.process.stop()


def _read(choice: dict[str, Any], stop: list[int]) -> Completion:
    tokens, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
    logp = logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logp, list) or len(tokens) != len(logp):
        raise Interrupted(
            "sampler",
            "the server returned no token ids with a log-probability each",
            "Use a vLLM that knows return_token_ids (0.10.2 or later).",
        )
    ended = bool(tokens) and tokens[-1] in stop
    return Completion(tokens, [float(x) for x in logp], Stop.END if ended else Stop.LENGTH)


def attempts(patience: tuple[float, ...]) -> Iterator[int]:
    """One attempt now, and one after each wait."""
    yield 0
    for number, wait in enumerate(patience, 1):
        time.sleep(wait)
        yield number


def weights_folder(settings: Server, work: Path | None) -> Path:
    """Where the servers read weights."""
    return Path(settings.weights) if settings.weights else (work or Path.cwd()) / "served"
