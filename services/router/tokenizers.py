"""Text to token ids and back, by each model's own tokenizer and chat template.

The only module of the services that imports transformers. Tokenizers are loaded once from local folders and shared;
long texts are encoded in a thread, so that the event loop goes on. Knows no requests and no workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.tokenizer_files import tokenizer_digest
from cache_store.tokens import PackedTokens, pack
from services.router.generation import ChatPrompt, Prompt, TextPrompt, TokenPrompt, TurnOpening

INLINE_CHARS = 2_000
"""Texts up to that length are encoded on the event loop: less than a millisecond."""

_TURN_CHARS = 50
"""Counted for every turn of a chat beside its text: what the template does for it takes time too."""

_NUM_THREADS = 2


class ModelTokenizer:
    """The tokenizer of one model. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises PreconditionError where `folder` holds no tokenizer that can be loaded."""
        if not (folder / "tokenizer.json").is_file():
            raise PreconditionError(
                f"{folder} has no tokenizer.json; save the model's fast tokenizer there with `save_pretrained`"
            )
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # the library raises whatever its parsers raise
            raise PreconditionError(f"the tokenizer of {folder} cannot be loaded: {type(error).__name__}") from error
        self._backend = self._tokenizer.backend_tokenizer
        self.digest = tokenizer_digest(folder)
        """Names it; a worker of the model must name the same."""

    def encode(self, prompt: TextPrompt | ChatPrompt) -> PackedTokens:
        """Token ids of a prompt. Raises InvalidRequestError where the template does not take the chat."""
        # The library lets other threads run in its batch calls only.
        if isinstance(prompt, TextPrompt):
            (encoding,) = self._backend.encode_batch_fast([prompt.text])
        else:
            (encoding,) = self._backend.encode_batch_fast([self._render(prompt)], add_special_tokens=False)
        return pack(encoding.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens; ids that the tokenizer does not know give none."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=True)
        return text

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Text with special tokens."""
        (text,) = self._backend.decode_batch([token_ids], skip_special_tokens=False)
        return str(text)

    def _render(self, chat: ChatPrompt) -> str:
        turns = [{"role": turn.role, "content": turn.content} for turn in chat.turns]
        if not self._tokenizer.chat_template:
            raise InvalidRequestError("prompt.chat", "the model has no chat template; send text or token_ids")
        opens = chat.opening is TurnOpening.ASSISTANT
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=opens)
        except TemplateError as error:
            raise InvalidRequestError(
                "prompt.chat", f"the model's chat template does not take these messages: {error}"
            ) from error
        assert isinstance(text, str)
        return text


class Tokenizer(Protocol):
    """What the router asks of a model's tokenizer."""

    @property
    def digest(self) -> str: ...

    def encode(self, prompt: TextPrompt | ChatPrompt) -> PackedTokens: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def decode_all(self, token_ids: Sequence[int]) -> str: ...


class Tokenizers:
    """The tokenizers of all models, by name. Owns its threads."""

    def __init__(self, by_model: Mapping[str, Tokenizer]) -> None:
        self._by_model = dict(by_model)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")

    @property
    def models(self) -> tuple[str, ...]:
        """Models with a tokenizer."""
        return tuple(self._by_model)

    def digests(self) -> Mapping[str, str]:
        """Names of the tokenizers, by model."""
        return {model: tokenizer.digest for model, tokenizer in self._by_model.items()}

    def get(self, model: str) -> Tokenizer | None:
        """None for a model that takes token ids only."""
        return self._by_model.get(model)

    async def encode(self, model: str, prompt: Prompt) -> PackedTokens:
        """Token ids of any form of prompt. Raises InvalidRequestError."""
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        tokenizer = self.required(model)
        if _num_chars(prompt) <= INLINE_CHARS:
            tokens = tokenizer.encode(prompt)
        else:
            tokens = await asyncio.get_running_loop().run_in_executor(self._threads, tokenizer.encode, prompt)
        if not tokens:
            raise InvalidRequestError("prompt", "the prompt gives no tokens; at least one is needed")
        return tokens

    async def decode_all(self, model: str, token_ids: Sequence[int]) -> str:
        """Text of any length, with special tokens. Raises InvalidRequestError for a model without a tokenizer."""
        tokenizer = self.required(model)
        if len(token_ids) <= INLINE_CHARS:
            return tokenizer.decode_all(token_ids)
        return await asyncio.get_running_loop().run_in_executor(self._threads, tokenizer.decode_all, token_ids)

    def required(self, model: str) -> Tokenizer:
        """Raises InvalidRequestError for a model without a tokenizer."""
        tokenizer = self.get(model)
        if tokenizer is None:
            raise InvalidRequestError(
                "model", f"model {model!r} has no tokenizer here; it takes and gives token ids only"
            )
        return tokenizer

    def close(self) -> None:
        """Ends the threads, without waiting for a text in work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def load_tokenizers(folders: Mapping[str, Path]) -> Tokenizers:
    """Loads all: seconds. Raises PreconditionError."""
    return Tokenizers({model: ModelTokenizer(folder) for model, folder in folders.items()})


def _num_chars(prompt: TextPrompt | ChatPrompt) -> int:
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return sum(_TURN_CHARS + len(turn.role) + len(turn.content) for turn in prompt.turns)
