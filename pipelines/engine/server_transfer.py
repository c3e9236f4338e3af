"""Weights sent to vLLM servers while they are paused: vLLM's own weight transfer, with an engine of ours on the servers' side.

    pause, init (once), start, update: one broadcast a tensor, finish, resume

Each server has a process group of its own with this process, so one that dies ends its own transfer alone. What a server is sent is what
`save_pretrained` would have written, tensor by tensor, with the same names and bytes. A server that fails after `start` holds a mixture of
old and new weights: it stays paused, and is not asked anything until it has been started again.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from pipelines.engine.server_endpoint import Endpoint, Unreachable
from pipelines.engine.vllm_worker.whetstone_group import Meeting, address_towards, join
from pipelines.engine.vllm_worker.whetstone_worker import ENGINE, Update

ROUTES = (
    "/pause",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/resume",
)
JOIN_S = 60.0
"""For a server's workers to come to the group."""
POLL_S = 0.0002
"""Between two looks at whether a server has taken a tensor."""


class Declined(Exception):
    """The weights of a server cannot be sent; it still holds its old ones, all of them."""


def refusal(endpoint: Endpoint) -> str | None:
    """Why a server's weights cannot be sent; None where they can."""
    paths = endpoint.paths()
    missing = [route for route in ROUTES if route not in paths]
    if missing:
        return f"its /openapi.json lists no {missing[0]}"
    if endpoint.reported("weight_transfer_config", "backend") != ENGINE:
        return f'it was not started with --weight-transfer-config \'{{"backend": "{ENGINE}"}}\''
    return None


class Source:
    """A model's tensors as a checkpoint has them: tied ones once, by the names of the family's files.

    Args:
        model: of transformers, whole in this process; or without values.
        gather: where it has none, name → the tensor, made when it is its turn.
    """

    def __init__(self, model: Any, gather: Callable[[str], Tensor] | None = None) -> None:
        self.model, self._gather = model, gather
        ignored = set(model._keys_to_ignore_on_save or ())
        stored = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
        self.weights = remove_tied_weights_from_state_dict(stored, model)

    def update(self) -> Update:
        """Names, dtypes and shapes, in the order in which they are sent.

        Raises:
            Declined: quantized weights, or files whose tensors are made of several of the model's.
        """
        if getattr(self.model, "hf_quantizer", None) is not None:
            raise Declined("the model's weights are quantized")
        shapes = {name: tensor.to("meta") for name, tensor in self.weights.items()}
        sent = dict(self._named(shapes.items()))
        reverted = revert_weight_conversion(self.model, shapes)
        if {n: t.shape for n, t in sent.items()} != {n: t.shape for n, t in reverted.items()}:
            raise Declined("the tensors of this family's files are made of several of the model's")
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in sent.values()]
        return Update(list(sent), dtypes, [list(tensor.shape) for tensor in sent.values()])

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        gather = self._gather or self.weights.__getitem__
        return self._named((name, gather(name)) for name in self.weights)

    def _named(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            yield from revert_weight_conversion(self.model, {name: tensor}).items()


class Transfer:
    """The group of this process and one server's workers.

    Args:
        endpoint: the server.
        kind: "gloo" or "nccl".
    """

    def __init__(self, endpoint: Endpoint, kind: str) -> None:
        self.endpoint, self.kind = endpoint, kind
        self.group: Any = None
        self.failure: Unreachable | None = None
        """What ended the transfer that is under way."""
        self._work: Any = None
        self._answer: Future[dict[str, Any]] = Future()

    def begin(self, update: Update) -> None:
        """Pause the server, and have it wait for the tensors.

        Raises:
            Declined: the group was not formed; the server goes on with its old weights.
            Unreachable: it does not answer, or failed; it may be paused.
        """
        self.failure = None
        self.endpoint.post("/pause?mode=keep", {}, ())
        if self.group is None:
            try:
                self.group = self._join()
            except Exception as problem:  # of any kind: nothing has been touched yet
                self.endpoint.post("/resume", {}, ())
                raise Declined(f"no group was formed with it ({type(problem).__name__}: {problem})") from problem
        self.endpoint.post("/start_weight_update", {}, ())
        pool = ThreadPoolExecutor(1)
        self._answer = pool.submit(self.endpoint.post, "/update_weights", {"update_info": asdict(update)}, ())
        pool.shutdown(wait=False)

    def _join(self) -> Any:
        size = 1 + self.endpoint.workers()
        place, listener = self._place()
        meeting = Meeting(
            place, secrets.token_hex(16), size, self.kind, join_s=JOIN_S, timeout_s=self.endpoint.settings.timeout_s
        )
        pool = ThreadPoolExecutor(2)
        asked = pool.submit(self.endpoint.post, "/init_weight_transfer_engine", {"init_info": asdict(meeting)}, ())
        joined = pool.submit(join, meeting, 0, listener)
        pool.shutdown(wait=False)
        done, _ = wait((asked, joined), return_when=FIRST_EXCEPTION)
        for each in done:
            each.result()
        return joined.result()

    def _place(self) -> tuple[str, socket.socket | None]:
        """A file beside the socket of a server of ours; else the one address at which the server reaches this process."""
        if self.endpoint.socket is not None:
            return f"file:{self.endpoint.socket.parent / secrets.token_hex(4)}", None
        host = address_towards(str(urlsplit(str(self.endpoint.address)).hostname))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        return f"tcp:{host}:{listener.getsockname()[1]}", listener

    def send(self, tensor: Tensor) -> None:
        """Begin to broadcast a tensor; nothing where the transfer has failed."""

        def begin() -> None:
            there = tensor.cpu() if self.kind == "gloo" else tensor
            self._work = self.group.broadcast(there.contiguous(), 0)

        self._attempt(begin)

    def wait(self) -> None:
        """Until the server has taken the tensor, or has failed."""

        def watch() -> None:
            while not self._work.is_completed():
                if self._answer.done():
                    self._answer.result()
                time.sleep(POLL_S)
            self._work.wait()

        self._attempt(watch)

    def _attempt(self, do: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            do()
        except (RuntimeError, Unreachable) as problem:  # torch's groups raise RuntimeErrors
            self.failure = Unreachable(f"{self.endpoint.name} stopped in the middle of a push ({problem})")
            # Hang up, which ends what the server waits for; a broadcast keeps the connection as the group does.
            self.group = self._work = None

    def end(self) -> None:
        """Have the server take the weights into use, forget its cached prefixes, and go on.

        Raises:
            Unreachable: it failed; it is left paused.
        """
        if self.failure is not None:
            raise self.failure
        self._answer.result()
        self.endpoint.post("/finish_weight_update", {}, ())
        self.endpoint.forget_prefixes(())
        self.endpoint.post("/resume", {}, ())


def broadcast(transfers: Sequence[Transfer], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Send all servers one tensor after the other; what fails is in a transfer's `failure`."""
    for _, tensor in tensors:
        for transfer in transfers:
            transfer.send(tensor)
        for transfer in transfers:
            transfer.wait()
