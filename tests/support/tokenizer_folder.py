"""A tokenizer folder for tests, with as many tokens as the token-digest runner makes, and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
TURN = "<|turn|>"
NUM_BYTE_TOKENS = 256
NUM_TOKENS = 32_000
_BYTES_EVERY = 5
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def write_tokenizer_folder(folder: Path) -> Path:
    """Ids 0 and 1 are `<|end|>` and `<|turn|>`, 2 to 257 the bytes: texts are encoded by these.

    The others come from a model only: words, and every fifth some bytes that may be parts of characters.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {END: 0, TURN: 1} | {char: at + 2 for at, char in enumerate(alphabet)}
    for token in range(len(vocab), NUM_TOKENS):
        vocab[_bytes(token, alphabet) if token % _BYTES_EVERY == 0 else f"\u0120w{token}"] = token
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(TURN, special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _bytes(token: int, alphabet: list[str]) -> str:
    """Two or three bytes, different for each token."""
    high, low = divmod(token, NUM_BYTE_TOKENS)
    return alphabet[high % NUM_BYTE_TOKENS] + alphabet[low] + (alphabet[-token % NUM_BYTE_TOKENS] if token % 2 else "")
