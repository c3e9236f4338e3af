"""Rollouts from vLLM servers: the same `extend`, over HTTP, with the weights of this step.

A server is another engine, so its log-probabilities are its own: they are kept, the difference to the trainer's
is measured every step (`mismatch/*`), and `rlvr.old_logp: trainer` with `credit: truncated_is` corrects for it. After every
push a probe makes sure that each server holds the weights that were pushed (`server_probe.py`).

docs/servers.md says how to start a server, and what has been run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import torch

from pipelines.base.errors import Interrupted
from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.data import marks
from pipelines.data.records import Stop
from pipelines.engine import parallel, server_endpoint, server_images, server_probe, server_transfer
from pipelines.engine.distinct_prompts import requests
from pipelines.engine.models import save_tokenizer
from pipelines.engine.pushed import Pushed, ShardedWeights, WholeWeights
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server_endpoint import Endpoint, Unreachable
from pipelines.engine.server_probe import Probe
from pipelines.engine.server_process import ServerProcess, visible_cards
from pipelines.engine.server_transfer import Declined, Transfer
from pipelines.recipe.server import Server

WITH_IMAGE = " (with an image)"
"""After a server's name: of the probe that is shown one."""
AT_ONCE = 64
"""Requests under way per server; it batches them."""


def _no_event(text: str, **about: Any) -> None:
    del text, about


class ServerSampler:
    """A concurrent `Sampler` whose tokens come from OpenAI-compatible completions endpoints of vLLM.

    Args:
        settings: addresses or what to start, weights folder, timeout.
        stop: token ids that end a completion.
        context: most tokens of a conversation.
        dtype: what the trainer computes in, "float32" or "bfloat16".
        work: the stage's folder, for the logs of servers that we start, and their weights.
        event: called with what happened to a server.
        base: of LoRA adapters, the folder of the weights that they belong to.
        lora_rank: of the adapters that are pushed; 0 where whole weights are.
        world: the processes that share the work: the first one starts the servers and pushes, all of them decode.

    Raises:
        Interrupted: from any call, when every server stays away, or one answers something else than asked for.
        StaleWeights: from `push`, when a server does not hold the weights that were pushed.
    """

    concurrent: ClassVar[bool] = True

    def __init__(
        self,
        settings: Server,
        *,
        stop: Sequence[int],
        context: int,
        dtype: str = "float32",
        work: Path | None = None,
        event: Callable[..., None] = _no_event,
        base: str = "",
        lora_rank: int = 0,
        world: parallel.World | None = None,
    ) -> None:
        self.lora_rank, self.world = lora_rank, world or parallel.World()
        self.settings, self.stop, self.context, self.dtype, self.event = settings, sorted(stop), context, dtype, event
        self.folder = server_endpoint.weights_folder(settings, work)
        self.endpoints = [Endpoint(settings, address=address) for address in settings.addresses]
        if settings.serve is not None and self.world.rank == 0:
            weights = Path(base) if lora_rank else self.folder
            cards = settings.serve.cards(self.world.size, visible_cards())
            for number in range(settings.serve.count):
                log = (work or Path.cwd()) / f"server-{number}.log"
                process = ServerProcess(
                    settings.serve, weights=weights, dtype=dtype, log=log, lora_rank=lora_rank,
                    cards=cards[number] if cards else None,
                    transfer=settings.weight_transfer != "folder" and not lora_rank,
                )  # fmt: skip
                self.endpoints.append(Endpoint(settings, process=process))
        self.transfers: dict[str, Transfer] = {}
        """Server → how it is sent weights; the others read the folder."""
        self.probes: dict[str, Probe] = {}
        self.metrics: dict[str, float] = {}
        """Of the last push and what was decoded since."""
        self.closed = False
        """Whether the run is over: what is still under way may fail."""
        self._lock = threading.Lock()
        self._last_problem = ""
        self._decoded_s = 0.0
        self._calls = 0
        """Of `extend` that are under way."""
        self._began: float | None = None
        """When the first of them began."""

    @property
    def decoding_s(self) -> float:
        """Seconds so far in which completions were under way."""
        began = self._began
        return self._decoded_s + (time.perf_counter() - began if began is not None else 0.0)

    def push(self, model: Any, tokenizer: Any) -> None:
        """Write the weights where the servers read them, have them loaded, and check that they are; every process must call.

        Args:
            model: whole, or `ShardedWeights`.
        """
        pushed = model if isinstance(model, ShardedWeights) else WholeWeights(model, self.world)
        for endpoint in self.endpoints:
            endpoint.reader = marks.reader_of(tokenizer)
            if endpoint.process is not None and endpoint.reader is not None:
                endpoint.process.sees, endpoint.process.images = True, endpoint.reader.backend
        if self.world.rank == 0:
            self._push(pushed, tokenizer)
        if self.world.size > 1:  # where the first process failed, the others wait here until they are ended with it
            self._follow(pushed.shared(self._state() if self.world.rank == 0 else None))

    def _state(self) -> dict[str, Any]:
        """What the other processes need to ask the servers too."""
        endpoints = [(e.address, e.socket, e.name, e.alive, e.about, e.adapter) for e in self.endpoints]
        return {"endpoints": endpoints, "metrics": self.metrics, "context": self.context}

    def _follow(self, state: dict[str, Any]) -> None:
        """Take over what the first process knows of the servers."""
        if self.world.rank == 0:
            return
        self.metrics, self.context = dict(state["metrics"]), state["context"]
        for number, (address, socket, name, alive, about, adapter) in enumerate(state["endpoints"]):
            if number == len(self.endpoints):
                self.endpoints.append(Endpoint(self.settings, address=address, socket=socket, name=name))
            endpoint = self.endpoints[number]
            endpoint.alive, endpoint.about, endpoint.adapter = alive, about, adapter

    def _write(self, pushed: Pushed, tokenizer: Any) -> str:
        """Write what is trained to the servers' folder, file by file at once; the adapters' name, "" for whole weights."""
        adapter = f"push-{secrets.token_hex(4)}" if self.lora_rank else ""
        target = self.folder / adapter
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".push-", dir=self.folder) as building:
            if self.lora_rank:
                pushed.model.save_pretrained(building, save_embedding_layers=False)
            else:
                pushed.write(Path(building))
                save_tokenizer(tokenizer, Path(building))
            for path in sorted(Path(building).iterdir()):
                os.replace(path, target / path.name)
        return adapter

    def _push(self, pushed: Pushed, tokenizer: Any) -> None:
        began = time.perf_counter()
        starts = any(e.process is not None and not e.process.running for e in self.endpoints)
        adapter = self._write(pushed, tokenizer) if self.lora_rank or starts else ""
        writing_s = time.perf_counter() - began
        self._bring_up(pushed.config)
        began = time.perf_counter()
        self.metrics = {"server/dropped": float(sum(not endpoint.alive for endpoint in self.endpoints))}
        sent = self._send(pushed)
        others = [endpoint for endpoint in self._living() if endpoint not in sent]
        if others and not (self.lora_rank or starts):
            self._write(pushed, tokenizer)

        def load(endpoint: Endpoint) -> None:
            try:
                if adapter:
                    endpoint.load_adapter(adapter, self.folder / adapter, self._patience())
                else:
                    endpoint.reload(self._patience())
            except Unreachable as problem:
                self._drop(endpoint, problem)

        self._at_once(load, others)
        self.metrics["time/push_s"] = writing_s + time.perf_counter() - began
        self._check(pushed)
        for older in self.folder.glob("push-*"):
            if older.name != adapter:
                shutil.rmtree(older, ignore_errors=True)

    def _at_once(self, ask: Callable[[Endpoint], Any], endpoints: Sequence[Endpoint]) -> list[Any]:
        """What each server is asked, at the same time."""
        with ThreadPoolExecutor(len(self.endpoints)) as pool:
            return list(pool.map(ask, endpoints))

    def _send(self, pushed: Pushed) -> list[Endpoint]:
        """Send the weights to the servers that take them so; returns those that have them."""
        transfers = [self.transfers[e.name] for e in self._living() if e.name in self.transfers]
        if not transfers:
            return []
        source = pushed.source()
        try:
            update = source.update()
        except Declined as why:
            for transfer in transfers:
                self._use_folder(transfer.endpoint, str(why))
            return []

        def begin(transfer: Transfer) -> bool:
            try:
                transfer.begin(update)
            except Declined as why:
                self._use_folder(transfer.endpoint, str(why))
                return False
            except Unreachable as problem:
                self._abandon(transfer.endpoint, problem)
                return False
            return True

        def end(transfer: Transfer) -> bool:
            try:
                transfer.end()
            except Unreachable as problem:
                self._abandon(transfer.endpoint, problem)
                return False
            return True

        with ThreadPoolExecutor(len(transfers)) as pool:
            begun = [t for t, ready in zip(transfers, pool.map(begin, transfers), strict=True) if ready]
            if begun:
                server_transfer.broadcast(begun, source)
            return [t.endpoint for t, done in zip(begun, pool.map(end, begun), strict=True) if done]

    def _use_folder(self, endpoint: Endpoint, why: str) -> None:
        """Let a server read the folder from now on.

        Raises:
            Interrupted: the recipe wants the weights to be sent.
        """
        wanted = self.settings.weight_transfer
        if wanted != "auto":
            raise Interrupted(
                "sampler.weight_transfer", f"{endpoint.name} cannot be sent weights over {wanted}: {why}",
                "Set auto or folder.",
            )  # fmt: skip
        self.transfers.pop(endpoint.name, None)
        self.event("a decoding server reads its weights from the folder", server=endpoint.name, why=why)

    def _abandon(self, endpoint: Endpoint, problem: Unreachable) -> None:
        """Drop a server that may hold a mixture of weights; one of ours ends, and starts again from the folder."""
        self.transfers.pop(endpoint.name, None)
        self._drop(endpoint, problem)
        if endpoint.process is not None:
            endpoint.process.end()

    def _check(self, pushed: Pushed) -> None:
        """Have every server say the fixed sequences' log-probabilities."""
        tokens = server_probe.sequences(pushed.config.get_text_config().vocab_size, self.context)
        row = server_images.probe(tokens[0], self.endpoints[0].reader, self.context)
        differences = self._differences(pushed, tokens, "") + (
            self._differences(pushed, [row], WITH_IMAGE) if row else []
        )
        self._living()
        self.metrics["server/weights_mismatch"] = max(differences)

    def _differences(self, pushed: Pushed, tokens: list[list[int]], about: str) -> list[float]:
        """Of the servers that answer; each has a probe for each kind of sequences."""
        trainer = pushed.logps(tokens, self.dtype)
        unknown = {self._coarser(endpoint) for endpoint in self._living() if endpoint.name + about not in self.probes}
        rounding = server_probe.rounding_of(pushed.logps, tokens) if "bfloat16" in unknown else 0.0

        def weights_mismatch(endpoint: Endpoint) -> float | None:
            try:
                answer = [endpoint.prompt_logps(ids, self._patience()) for ids in tokens]
            except Unreachable as problem:
                self._drop(endpoint, problem)
                return None
            name = endpoint.name + about
            probe = self.probes.setdefault(name, Probe(name, self._coarser(endpoint), rounding))
            return probe.judge(trainer, torch.tensor(answer, dtype=torch.float32).flatten())

        return [d for d in self._at_once(weights_mismatch, self._living()) if d is not None]

    def _bring_up(self, config: Any) -> None:
        """Start our servers that do not run, take back others that answer again, and examine those that are new."""
        for endpoint in self.endpoints:
            if endpoint.process is not None and not endpoint.process.running:
                self._start(endpoint, endpoint.process)
        for endpoint in self.endpoints:
            if endpoint.process is not None and not endpoint.alive:
                self._await(endpoint, endpoint.process)
                endpoint.alive = True
            elif not endpoint.alive and endpoint.back():
                endpoint.alive, endpoint.about, endpoint.adapter = True, None, ""
                self.event("a decoding server is back", server=endpoint.name)
        for endpoint in self._living():
            if endpoint.about is None:
                self._examine(endpoint, config)

    def _start(self, endpoint: Endpoint, process: ServerProcess) -> None:
        self.event("starting a decoding server", command=process.command, log=str(process.log))
        process.start()
        endpoint.about, endpoint.alive, endpoint.adapter = None, False, ""

    def _await(self, endpoint: Endpoint, process: ServerProcess) -> None:
        """Wait for a server of ours; a vLLM without weight transfer is started again without it."""
        assert self.settings.serve is not None
        try:
            endpoint.wait_until_ready(self.settings.serve.startup_s)
        except Interrupted:
            if not (process.transfer and process.knows_no_transfer):
                raise
            process.transfer = False
            self._start(endpoint, process)
            endpoint.wait_until_ready(self.settings.serve.startup_s)

    def _examine(self, endpoint: Endpoint, config: Any) -> None:
        """Ask a server that is new what it is; it may still be starting."""
        for about in ("", WITH_IMAGE):
            self.probes.pop(endpoint.name + about, None)
        self.transfers.pop(endpoint.name, None)
        if not any(endpoint.ready() for _ in server_endpoint.attempts(self._patience())):
            self._drop(endpoint, Unreachable(f"{endpoint.name} does not answer"))
            return
        try:
            endpoint.examine(config, self._patience(), lora_rank=self.lora_rank)
            self._choose_transfer(endpoint)
        except Unreachable as problem:
            self._drop(endpoint, problem)
            return
        room = endpoint.reported("model_config", "max_model_len")
        if isinstance(room, int) and 0 < room < self.context:
            self.event("a decoding server has less context than the model", server=endpoint.name, tokens=room)
            self.context = room
        if not endpoint.seeds and self.settings.seeds is None:
            self.event("requests carry no seed: this server is a CPU build with chunked prefill", server=endpoint.name)

    def _choose_transfer(self, endpoint: Endpoint) -> None:
        """Send the server weights where the recipe and it allow that."""
        wanted = self.settings.weight_transfer
        if wanted == "folder" or self.lora_rank:
            return
        why = server_transfer.refusal(endpoint)
        if why is None:
            self.transfers[endpoint.name] = Transfer(endpoint, "nccl" if wanted == "nccl" else "gloo")
        else:
            self._use_folder(endpoint, why)

    def _coarser(self, endpoint: Endpoint) -> str:
        """The coarser of trainer's and server's dtype."""
        return max({self.dtype, endpoint.dtype} & server_probe.BOUNDS.keys(), key=server_probe.BOUNDS.__getitem__)

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        *,
        entropy: bool = False,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order; see `Sampler`."""
        if entropy:
            raise Interrupted(
                "sampler",
                "a server reports no entropies, and a method here needs entropy_old",
                "Remove the sampler section, or choose another method.",
            )
        out: list[Completion] = [Completion([], [], Stop.ERROR) for _ in prefixes]
        asked = requests(prefixes, self.context, generator, streams)
        with self._decoding(), ThreadPoolExecutor(AT_ONCE * len(self.endpoints)) as pool:
            futures = [
                pool.submit(self._complete, each.prompt, len(each.places), sampling, each.seed) for each in asked
            ]
            for each, future in zip(asked, futures, strict=True):
                for i, completion in zip(each.places, future.result(), strict=True):
                    out[i] = completion
        return out

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        """A call that counts as decoding; time in which several are under way counts once."""
        with self._lock:
            self._calls += 1
            self._began = self._began or time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls and self._began is not None:
                    self._decoded_s, self._began = self._decoded_s + time.perf_counter() - self._began, None

    def _complete(self, prompt: list[int], count: int, sampling: Sampling, seed: int) -> list[Completion]:
        """Completions of one prompt from the server with the fewest requests; from another one if it dies."""
        while True:
            if self.closed:
                raise Interrupted("sampler", "the run is over.")
            with self._lock:
                endpoint = min(self._living(), key=lambda candidate: candidate.under_way)
                endpoint.under_way += 1
            try:
                room = self.context - len(prompt)
                return endpoint.complete(
                    prompt, count, sampling, seed=seed, room=room, stop=self.stop, patience=self._patience()
                )
            except Unreachable as problem:
                self._drop(endpoint, problem)
            finally:
                with self._lock:
                    endpoint.under_way -= 1

    def _patience(self) -> tuple[float, ...]:
        """All of it for the last server; others are dropped soon, and come back with the next push."""
        waits = server_endpoint.PATIENCE
        return waits if sum(endpoint.alive for endpoint in self.endpoints) == 1 else waits[:1]

    def _drop(self, endpoint: Endpoint, problem: Unreachable) -> None:
        with self._lock:
            self._last_problem = str(problem)
            if not endpoint.alive:
                return
            endpoint.alive = False
            self.metrics["server/dropped"] = self.metrics.get("server/dropped", 0.0) + 1
        self.event(
            "a decoding server is dropped; its prompts are asked elsewhere", server=endpoint.name, why=str(problem)
        )

    def _living(self) -> list[Endpoint]:
        living = [endpoint for endpoint in self.endpoints if endpoint.alive]
        if living:
            return living
        logs = [f"{e.process.log} says:\n  {e.process.why()}" for e in self.endpoints if e.process is not None]
        count = "the server is" if len(self.endpoints) == 1 else f"all {len(self.endpoints)} servers are"
        raise Interrupted(
            "sampler",
            f"{count} gone: {self._last_problem}",
            "The last commit is good: start "
            f"{'the run again' if logs else 'the server and the run again'}.{''.join(f' {log}' for log in logs[:1])}",
        )

    def close(self) -> None:
        """Hang up, and stop the servers that we started."""
        self.closed = True
        for endpoint in self.endpoints:
            endpoint.close()


@contextlib.contextmanager
def serving(
    settings: Server, own: TorchSampler, tokenizer: Any, *, work: Path, event: Callable[..., None]
) -> Iterator[ServerSampler]:
    """Servers that decode with the weights of a loaded model, for the length of a block.

    Args:
        own: the model's sampler in this process, which stays unused.
        work: folder for the logs of servers that we start, and their weights.
        event: as for `ServerSampler`.
    """
    server = ServerSampler(
        settings, stop=own.stop.tolist(), context=own.context, dtype=own.dtype, work=work, event=event
    )
    try:
        server.push(own.model, tokenizer)
        yield server
    finally:
        server.close()
