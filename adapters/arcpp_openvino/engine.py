"""Engine: an OpenVINO model on several devices, for Python programs.

    with Engine.from_folder(path, devices=("GPU.0", "GPU.1")) as engine:
        print(engine.generate("In the beginning").text)
        for piece in engine.stream("In the beginning", Sampling(max_tokens=64)):
            print(piece.text, end="", flush=True)

Prompts are text, token ids, or conversations (sequences of {"role", "content"}). Any thread may
call; one thread of the engine's does the work.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from arcpp.errors import BadInput
from arcpp.hooks import hooks_for
from arcpp.settings import read_settings
from arcpp.state import PoolSize, SlotPool
from arcpp.supervise import RestartPolicy

from .blocks import BlockPool
from .chain import Chain
from .folder import check_tokenizers, open_folder
from .loop import Loop
from .options import ChainOptions
from .recovery import Recovery
from .request import (
    FinishReason,
    Generated,
    Listener,
    Piece,
    QueueFull,
    Running,
    TokenLogprob,
    TooLong,
)
from .sampling import Sampling
from .scheduler import Limits, Scheduler
from .text import GenaiTokenizer, Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

_DEFAULT = Sampling()


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine; ``chain`` has those of its stages.

    max_sequences: requests that run at once; others wait. max_batch_tokens: tokens of one step;
    longer prompts take several. max_waiting: requests that wait at most. max_model_len: tokens of
    one request at most; None for what the tables hold. prefix_caching: share what prompts begin
    with. prefix_states: states of prefixes that are kept in hybrid models, each as large as a
    request's. microbatches: steps in flight at once; None for one per device.
    """

    max_sequences: int = 8
    max_batch_tokens: int = 512
    max_waiting: int = 1024
    max_model_len: int | None = None
    prefix_caching: bool = True
    prefix_states: int = 4
    microbatches: int | None = None
    chain: ChainOptions = field(default_factory=ChainOptions)

    def __post_init__(self) -> None:
        least = {"max_sequences": 1, "max_waiting": 0, "prefix_states": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BadInput(name, getattr(self, name), f"is too few: {low} at least")
        if self.max_batch_tokens < self.max_sequences:
            right = f"is too few for a token of each of {self.max_sequences} requests"
            raise BadInput("max_batch_tokens", self.max_batch_tokens, right)

    def of_chain(self, devices: Sequence[str]) -> ChainOptions:
        """The chain's, with what follows from the engine's."""
        snapshots = self.prefix_states if self.prefix_caching else 0
        return replace(
            self.chain,
            max_sequences=self.max_sequences,
            state_blocks=1 + self.max_sequences + snapshots,
            max_batch_tokens=self.max_batch_tokens,
            max_model_len=self.max_model_len,
            microbatches=self.microbatches or len(set(devices)),
        )


@dataclass(frozen=True)
class EngineStats:
    """How an engine is doing. *_blocks: of KV; *_slots: of recurrent state, 0 in dense models."""

    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    faults: int
    kv_blocks: int
    free_blocks: int
    state_slots: int
    free_slots: int
    finished: Mapping[str, int]


class Engine:
    """See the module. Close it, or use it as a context manager."""

    def __init__(
        self,
        chain: Chain,
        tokenizer: Tokenizer,
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """An engine over ``chain``, which is closed with it."""
        settings = read_settings()
        self.chain, self.tokenizer, self.options = chain, tokenizer, options
        profile = chain.profile
        snapshots = options.prefix_states if options.prefix_caching else 0
        size = PoolSize(options.max_sequences, snapshots=snapshots)

        def pool() -> SlotPool | None:
            return None if chain.states is None else SlotPool(chain.states, size)

        blocks = BlockPool(profile.kv_blocks, profile.block_size)
        limits = Limits(options.max_sequences, options.max_batch_tokens, profile.microbatches)
        scheduler = Scheduler(blocks, limits, pool(), prefix_caching=options.prefix_caching)
        policy = RestartPolicy(settings.restart_budget, settings.restart_window, backoff=1.0)
        recovery = Recovery(chain, pool, policy, hooks_for(settings))
        self._loop = Loop(
            chain,
            scheduler,
            tokenizer,
            recovery,
            hybrid=profile.hybrid,
            vocab_size=profile.vocab_size,
            step_timeout=settings.step_timeout,
        )
        self._numbers = itertools.count()
        held = profile.kv_blocks * profile.block_size
        self.max_model_len = min(options.max_model_len or held, held)
        self._loop.start()

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        devices: Sequence[str] = ("CPU",),
        partition: Sequence[int] | None = None,
        options: EngineOptions = EngineOptions(),
    ) -> Self:
        """The model at ``path`` (an IR with its tokenizer), one stage per device.

        partition: layers per stage; None for arcpp's plan. Raises BadModel, BadInput, DoesNotFit,
        StageFailed.
        """
        folder = open_folder(path)
        check_tokenizers(folder)
        tokenizer = GenaiTokenizer(folder.path)
        chain = Chain.from_folder(path, devices, partition, options.of_chain(devices))
        return cls(chain, tokenizer, options)

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling = _DEFAULT,
        *,
        listener: Listener,
        timeout: float | None = None,
    ) -> str:
        """Begin a request; ``listener`` gets its pieces. Returns its id.

        timeout: seconds after which it ends with FinishReason.DEADLINE. Raises BadInput, TooLong
        (with what would fit), QueueFull, EngineClosed.
        """
        tokens = self.tokens(prompt)
        self._check_tokens(sampling)
        self._check_length(len(tokens), sampling)
        if self._loop.waiting >= self.options.max_waiting + self.options.max_sequences:
            raise QueueFull(self._loop.waiting)
        number = next(self._numbers)
        deadline = None if timeout is None else time.monotonic() + timeout
        running = Running(
            f"request-{number}", tokens, len(tokens), sampling, listener, deadline, arrival=number
        )
        self._loop.add(running)
        return running.request_id

    def tokens(self, prompt: Prompt) -> list[int]:
        """``prompt`` as token ids. Raises BadInput."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            tokens = self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        else:
            tokens = [self._token(token) for token in prompt]
        if not tokens:
            raise BadInput("prompt", "", "is empty: one token at least")
        return tokens

    def _token(self, token: Any) -> int:
        size = self.chain.profile.vocab_size
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            raise BadInput("prompt", token, f"is no token id from 0 to {size - 1}")
        return token

    def _check_tokens(self, sampling: Sampling) -> None:
        size = self.chain.profile.vocab_size
        for token in sampling.logit_bias:
            if token >= size:
                raise BadInput("logit_bias", token, f"is no token id from 0 to {size - 1}")

    def _check_length(self, prompt: int, sampling: Sampling) -> None:
        if prompt + sampling.max_tokens <= self.max_model_len:
            return
        set_by_user = self.max_model_len == self.options.max_model_len
        why = "max_model_len" if set_by_user else "all that the KV tables hold"
        raise TooLong(prompt, sampling.max_tokens, self.max_model_len, why)

    @property
    def is_alive(self) -> bool:
        """Whether requests are taken: not closed, and not ended by faults."""
        return not self._loop.ended and not self._loop.closing

    def describe(self) -> list[str]:
        """What runs where, for people."""
        profile, lines = self.chain.profile, []
        for stage in self.chain.stages:
            layers = f"layers {stage.low} to {stage.high - 1}"
            lines.append(f"stage {stage.index} on {stage.device}: {layers}")
        lines.append(
            f"{profile.kv_blocks} KV blocks of {profile.block_size} tokens, "
            f"{self.options.max_sequences} requests at once, {self.max_model_len} tokens each"
        )
        return lines

    def cancel(self, request_id: str) -> None:
        """End a request within a step: its listener gets FinishReason.CANCELLED."""
        self._loop.cancel(request_id)

    def stream(
        self, prompt: Prompt, sampling: Sampling = _DEFAULT, *, timeout: float | None = None
    ) -> Iterator[Piece]:
        """Pieces as they come. Dropping the iterator cancels the request. Raises as submit(), at
        once, and the error of a request that fails, in its place."""
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        request_id = self.submit(prompt, sampling, listener=pieces.put, timeout=timeout)
        return self._pieces(request_id, pieces)

    def _pieces(self, request_id: str, pieces: queue.SimpleQueue[Piece]) -> Iterator[Piece]:
        try:
            while True:
                piece = pieces.get()
                if piece.error is not None:
                    raise piece.error
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:
            self.cancel(request_id)

    async def astream(
        self, prompt: Prompt, sampling: Sampling = _DEFAULT, *, timeout: float | None = None
    ) -> AsyncIterator[Piece]:
        """As stream(), for asyncio."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Piece]()

        def listener(piece: Piece) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        request_id = self.submit(prompt, sampling, listener=listener, timeout=timeout)
        try:
            while True:
                piece = await pieces.get()
                if piece.error is not None:
                    raise piece.error
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:
            self.cancel(request_id)

    def generate(
        self, prompt: Prompt, sampling: Sampling = _DEFAULT, *, timeout: float | None = None
    ) -> Generated:
        """The whole output. Raises as stream()."""
        return self.generate_all([prompt], sampling, timeout=timeout)[0]

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = _DEFAULT,
        *,
        timeout: float | None = None,
    ) -> list[Generated]:
        """Outputs of several prompts, which run at once. Raises as stream()."""
        tokens = [self.tokens(prompt) for prompt in prompts]
        outputs = [self.stream(each, sampling, timeout=timeout) for each in tokens]
        return [_whole(one, len(each)) for one, each in zip(outputs, tokens, strict=True)]

    def stats(self) -> EngineStats:
        """A look at the engine; numbers may be a step apart."""
        scheduler, counters = self._loop.scheduler, self._loop.counters
        states = scheduler.states
        return EngineStats(
            running=len(scheduler.running),
            waiting=self._loop.waiting,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=scheduler.preemptions,
            faults=counters.faults,
            kv_blocks=scheduler.blocks.count,
            free_blocks=scheduler.blocks.available,
            state_slots=0 if states is None else states.size.slots,
            free_slots=0 if states is None else states.available,
            finished=dict(counters.finished),
        )

    def close(self, drain: float | None = 0.0) -> None:
        """Take no more requests and end: those there are may finish for ``drain`` seconds (None:
        as long as they take), the rest is cancelled."""
        self._loop.close(drain)
        self.chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _whole(pieces: Iterator[Piece], prompt_tokens: int) -> Generated:
    text, tokens, reason = "", [], FinishReason.ERROR
    logprobs: list[TokenLogprob] = []
    for piece in pieces:
        text += piece.text
        tokens += piece.token_ids
        logprobs += piece.logprobs
        reason = piece.finish_reason or reason
    return Generated(text, tuple(tokens), reason, prompt_tokens, tuple(logprobs))
