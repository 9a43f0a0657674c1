"""A tokenizer folder for tests: bytes as tokens, with a chat template, small enough for the token-digest runner."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
TURN = "<|turn|>"
NUM_BYTE_TOKENS = 256
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def write_tokenizer_folder(folder: Path) -> Path:
    """Ids 0 and 1 are `<|end|>` and `<|turn|>`, 2 to 257 the bytes (in the order of the byte-level alphabet)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {END: 0, TURN: 1} | {char: at + 2 for at, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(TURN, special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
