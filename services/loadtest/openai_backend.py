"""Another server under load, for comparison: what is asked of it once. It has no partitions that a client names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from tokenizers import Tokenizer as FolderFile

from cache_store.errors import InvalidRequestError, PreconditionError, UnavailableError
from cache_store.tokens import PackedTokens, unpack
from services.loadtest.backends import MIN_ALPHABET, WORDS, Caller, ServedModel, alphabet_of, is_this_machine
from services.loadtest.openai_target import OpenAiTarget, ServerTokenizer, answers, fetched, session
from services.loadtest.targets import Tokenizer

_CALL_S = 20.0
_UNKNOWN_LEN = 1 << 24


class FolderTokenizer:
    """Of a folder with tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        """Raises InvalidRequestError where it cannot be loaded."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidRequestError("tokenizer", f"{folder} has no tokenizer.json; name the served model's folder")
        self._tokenizer: Any = FolderFile.from_file(str(path))

    async def encode(self, text: str) -> tuple[int, ...]:
        """Without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    async def decode(self, tokens: PackedTokens) -> str:
        """Special ones included."""
        return str(self._tokenizer.decode(unpack(tokens), skip_special_tokens=False))


class OpenAiBackend:
    """Implements `Backend`. Belongs to one event loop."""

    name = "openai"
    has_partitions = False

    def __init__(self, url: str, model: str, folder: Path | None, prompt_form: str, timeout_s: float) -> None:
        """`url` with or without /v1; `folder` of the model's tokenizer, None: the server's own."""
        if not url.startswith(("http://", "https://")):
            raise InvalidRequestError("target", f"{url!r} is no URL; write http://HOST:PORT")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._prompt_form = prompt_form
        self._timeout_s = timeout_s
        self._folder = FolderTokenizer(folder) if folder else None
        self._client: aiohttp.ClientSession | None = None
        self.is_remote = not is_this_machine(urlsplit(url).hostname or "")
        self.tokenizer = str(folder) if folder else "server"

    async def model(self) -> ServedModel:
        """The named one, or the only one of /v1/models."""
        try:
            found = await fetched(self._opened(), f"{self._url}/v1/models", None)
            listed = {str(each["id"]): each for each in found["data"]}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"{self._url}/v1/models does not answer: {error}", 1.0) from error
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(f"{self._url}/v1/models is no list of models; is it an OpenAI API?") from error
        name = self._model or (next(iter(listed)) if len(listed) == 1 else "")
        if name not in listed:
            raise InvalidRequestError("model", f"name a model with --model; served are: {', '.join(listed) or 'none'}")
        return ServedModel(name, 0, int(listed[name].get("max_model_len") or _UNKNOWN_LEN), 0, 0)

    async def alphabet(self, model: ServedModel) -> tuple[int, ...]:
        """Of ordinary words, by the tokenizer of the folder or of the server."""
        tokenizer = self._tokenizer(model)
        if self._folder is None:
            probe = {"model": model.name, "prompt": "a", "content": "a", "add_special_tokens": False}
            if not await answers(self._opened(), f"{self._url}/tokenize", probe):
                raise PreconditionError(
                    f"{self._url} has no /tokenize, and prompts are counted by the served model's tokenizer: name its "
                    "folder with --tokenizer DIR"
                )
        found = await tokenizer.encode(" " + WORDS)
        if len(set(found)) < MIN_ALPHABET:
            raise PreconditionError("the tokenizer makes too few different tokens of ordinary words")
        return alphabet_of(found, max(found) + 1)

    def target(self, caller: Caller, model: ServedModel) -> OpenAiTarget:
        """A session of its own."""
        made = OpenAiTarget(self._url, caller.api_key, model.name, self._tokenizer(model), self._timeout_s)
        return made.sending_text() if self._prompt_form == "text" else made

    def target_past_cache(self, caller: Caller, model: ServedModel) -> OpenAiTarget:
        """Such servers offer no way past: it is an ordinary request."""
        return self.target(caller, model)

    async def purge(self, caller: Caller) -> None:
        """Raises PreconditionError: such servers offer none."""
        raise PreconditionError(f"{caller.tenant}: an OpenAI API has no purge; use --cache-start fresh or keep")

    async def close(self) -> None:
        """Closes its connections."""
        if self._client:
            await self._client.close()

    def _opened(self) -> aiohttp.ClientSession:
        self._client = self._client or session("", _CALL_S)
        return self._client

    def _tokenizer(self, model: ServedModel) -> Tokenizer:
        return self._folder or ServerTokenizer(self._url, model.name, self._opened())
