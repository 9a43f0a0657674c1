"""Text, chats and token ids by a real tokenizer from a folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.errors import InvalidRequestError, PreconditionError
from cache_store.tokens import PackedTokens, count, pack, unpack
from services.router.detokenizer import Detokenizer
from services.router.generation import ChatPrompt, ChatTurn, TextPrompt, TokenPrompt, TurnOpening
from services.router.tokenizers import INLINE_CHARS, ModelTokenizer, Tokenizers, load_tokenizers
from tests.support.tokenizer_folder import write_tokenizer_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder)


def chat(*turns: tuple[str, str], opening: TurnOpening = TurnOpening.ASSISTANT) -> ChatPrompt:
    return ChatPrompt(tuple(ChatTurn(role, content) for role, content in turns), opening)


def test_a_chat_is_rendered_by_the_models_template(tokenizer: ModelTokenizer) -> None:
    tokens = unpack(tokenizer.encode(chat(("user", "hé"))))
    assert tokenizer.decode_all(tokens) == "<|turn|>user\nhé<|turn|>assistant\n"
    assert tokenizer.decode(tokens) == "user\nhéassistant\n"
    assert tokens[0] == 1


def test_a_chat_need_not_open_the_assistants_turn(tokenizer: ModelTokenizer) -> None:
    tokens = unpack(tokenizer.encode(chat(("user", "h"), opening=TurnOpening.NONE)))
    assert tokenizer.decode_all(tokens) == "<|turn|>user\nh"


def test_a_chat_that_the_template_refuses_is_invalid(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="no such role") as error:
        tokenizer.encode(chat(("nobody", "h")))
    assert error.value.field == "prompt.chat"


@given(st.text(max_size=30))
def test_text_survives_token_by_token(tokenizer: ModelTokenizer, text: str) -> None:
    plain = text.replace("<", "")
    detokenizer = Detokenizer(tokenizer.decode, [])
    made = "".join(detokenizer.push(token) for token in unpack(tokenizer.encode(TextPrompt(plain))))
    assert made + detokenizer.flush() == plain


async def test_long_texts_give_the_same_tokens_in_a_thread(folder: Path) -> None:
    tokenizers = load_tokenizers({"m": folder})
    text = "aé€" * INLINE_CHARS
    tokens = await tokenizers.encode("m", TextPrompt(text))
    assert tokens == tokenizers.required("m").encode(TextPrompt(text))
    assert count(tokens) == len(text.encode())
    tokenizers.close()


@pytest.mark.parametrize(
    "prompt",
    [
        TextPrompt("a" * (INLINE_CHARS + 1)),
        chat(("user", "a" * INLINE_CHARS)),
        chat(("a" * INLINE_CHARS, "")),
        chat(*[("u", "")] * 100),
    ],
    ids=["text", "content", "role", "many turns"],
)
async def test_whatever_takes_long_is_encoded_off_the_event_loop(prompt: TextPrompt | ChatPrompt) -> None:
    loop_thread = threading.get_ident()

    class Watched:
        digest = ""

        def __init__(self) -> None:
            self.threads: list[int] = []

        def encode(self, prompt: TextPrompt | ChatPrompt) -> PackedTokens:
            self.threads.append(threading.get_ident())
            return pack([1])

        def decode(self, token_ids: Sequence[int]) -> str:
            return ""

        def decode_all(self, token_ids: Sequence[int]) -> str:
            return ""

    watched = Watched()
    tokenizers = Tokenizers({"m": watched})
    await tokenizers.encode("m", chat(("user", "short")))
    await tokenizers.encode("m", prompt)
    assert watched.threads[0] == loop_thread
    assert watched.threads[1] != loop_thread
    tokenizers.close()


async def test_a_model_without_a_tokenizer_takes_token_ids_only() -> None:
    tokenizers = Tokenizers({})
    assert await tokenizers.encode("m", TokenPrompt(pack([5]))) == pack([5])
    with pytest.raises(InvalidRequestError, match="token ids only"):
        await tokenizers.encode("m", TextPrompt("x"))
    tokenizers.close()


def test_folders_without_a_usable_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"no tokenizer\.json"):
        ModelTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(PreconditionError, match="cannot be loaded"):
        ModelTokenizer(tmp_path)


def test_a_tokenizer_needs_no_torch(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from services.router.generation import *;"
        "from services.router.tokenizers import ModelTokenizer;"
        f"t = ModelTokenizer(Path({str(folder)!r}));"
        "t.encode(ChatPrompt((ChatTurn('user', 'x'),), TurnOpening.ASSISTANT));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
