"""How a prompt is given on a command line: as text, from a file or standard input, as a chat, or as token ids."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.client import Chat, Prompt, Tokens


def add_prompt_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a command that takes a prompt."""
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("text", nargs="?", help="the prompt; - reads it from standard input")
    prompt.add_argument("--file", type=Path, metavar="FILE", help="file that holds the prompt, UTF-8")
    prompt.add_argument("--token-ids", type=_token_ids, metavar="ID,ID,…", help="the prompt as token ids")
    parser.add_argument("--chat", action="store_true", help="send the text as a user message")
    parser.add_argument("--system", metavar="TEXT", help="system message before it (means --chat)")
    parser.add_argument("--model", default="", help="name of the model (needed where several are served)")
    parser.add_argument("--partition", default="", help="space of its own inside the tenant's cache")


def prompt_of(args: argparse.Namespace) -> Prompt:
    """The prompt that the flags say. Raises OSError, ValueError for a file that is no text."""
    if args.token_ids is not None:
        return Tokens(args.token_ids)
    text = _text(args)
    return Chat.of(text, args.system) if args.chat or args.system is not None else text


def count_of(text: str) -> int:
    """A number that is not negative."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _text(args: argparse.Namespace) -> str:
    if args.file is None:
        return sys.stdin.read() if args.text == "-" else str(args.text)
    try:
        return str(args.file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{args.file} is no UTF-8 text") from None


def _token_ids(text: str) -> tuple[int, ...]:
    parts = text.replace(",", " ").split()
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 10 and int(part) < 1 << 32):
            raise argparse.ArgumentTypeError(f"{part!r} is no token id; write numbers from 0 to {(1 << 32) - 1}")
    return tuple(map(int, parts))
