"""`stemcache tokens A B`: two prompts as the served tokenizer and chat template split them, side by side.

Shows where they part and how many full blocks they can share: blocks are named by their tokens and by all before them,
so nothing after the first difference is shared.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from services.cli.connection import add_tenant_flags, tenant_client
from services.cli.exit_codes import ExitCode
from services.cli.output import print_json
from services.client import Chat, ChatMessage, Prompt, StemcacheClient, Tokens

MAX_SHOWN = 4_096
"""Tokens of a prompt whose texts are asked for, one by one."""

CONTEXT = 16
"""Tokens before and after the first difference that are shown."""

_EPILOG = """a prompt is a text, @FILE for the text in a file, or a chat as JSON: '[{"role": "user", "content": "hi"}]'.
With --chat, texts are sent as user messages, after the message of --system."""

_PLAIN = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Palette:
    """How lines are painted; empty: not at all."""

    same: str = ""
    other: str = ""
    edge: str = ""


COLOURS = Palette(same="\x1b[32m", other="\x1b[31m", edge="\x1b[2m")


@dataclass(frozen=True, slots=True)
class Split:
    """One prompt."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    """Of the tokens around the first difference, from `first_shown` on."""
    num_blocks: int
    """Full blocks that it makes."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two prompts."""

    model: str
    block_size: int
    common_tokens: int
    """Leading tokens that are equal."""
    shared_blocks: int
    """Full blocks of them: what one request can reuse of the other's."""
    first_shown: int
    """Number of the first token whose text is in `texts`."""
    a: Split
    b: Split


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser("tokens", help="how two prompts are split, and what they can share", epilog=_EPILOG)
    parser.add_argument("a", metavar="A", help="a prompt")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--chat", action="store_true", help="send texts as user messages")
    parser.add_argument("--system", metavar="TEXT", help="system message before them (means --chat)")
    parser.add_argument("--model", default="", help="name of the model (needed where several are served)")
    parser.add_argument("--all", action="store_true", help="show all tokens, not only those around the difference")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_tenant_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Asks and prints. Raises OSError, ValueError for what is no prompt."""
    make = chat_of if args.chat or args.system is not None else prompt_of
    prompts = [make(text, args.system) for text in (args.a, args.b)]
    with tenant_client(args) as client:
        comparison = compare(client, prompts[0], prompts[1], args.model, MAX_SHOWN if args.all else CONTEXT)
    if args.json:
        print_json(comparison)
    else:
        _print(comparison, COLOURS if sys.stdout.isatty() else Palette())
    return ExitCode.OK


def prompt_of(text: str, _: str | None = None) -> Prompt:
    """What an argument means. Raises OSError, ValueError."""
    text = _read(text)
    return _messages_of(text) or text


def chat_of(text: str, system: str | None) -> Prompt:
    """The same, where a text is a user's message. Raises OSError, ValueError."""
    text = _read(text)
    return _messages_of(text) or Chat.of(text, system)


def _read(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{text[1:]} is no UTF-8 text") from None


def _messages_of(text: str) -> Chat | None:
    """A list of messages as JSON; None for any other text."""
    if not text.lstrip().startswith("["):
        return None
    try:
        messages = json.loads(text)
    except ValueError:
        return None
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        return None
    for each in messages:
        if not (isinstance(each["role"], str) and isinstance(each.get("content"), str)):
            raise ValueError("a message of a chat has a role and a content, both texts")  # noqa: TRY004 - of a flag
    return Chat(tuple(ChatMessage(each["role"], each["content"]) for each in messages))


def compare(client: StemcacheClient, a: Prompt, b: Prompt, model: str, context: int) -> Comparison:
    """Splits both; `context` tokens on both sides of the difference are shown.

    Raises ApiError, ValueError where the model has to be named.
    """
    cards = [card for card in client.models() if not model or card.name == model]
    if len(cards) != 1:
        raise ValueError(f"{len(cards)} models fit; name one with --model")
    block_size = cards[0].block_size
    first, second = client.tokenize(a, model), client.tokenize(b, model)
    common = common_prefix(first.token_ids, second.token_ids)
    start = max(0, common - context)
    end = min(common + context, start + MAX_SHOWN)

    def split(token_ids: tuple[int, ...], num_blocks: int) -> Split:
        shown = token_ids[start:end]
        return Split(token_ids, tuple(client.detokenize(Tokens((each,)), model) for each in shown), num_blocks)

    return Comparison(
        model=cards[0].name,
        block_size=block_size,
        common_tokens=common,
        shared_blocks=common // block_size,
        first_shown=start,
        a=split(first.token_ids, first.num_blocks),
        b=split(second.token_ids, second.num_blocks),
    )


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Leading tokens that are equal."""
    shorter = min(len(a), len(b))
    return next((at for at in range(shorter) if a[at] != b[at]), shorter)


def _print(found: Comparison, palette: Palette) -> None:
    rows = _rows(found)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    if found.first_shown:
        print(f"{found.first_shown} equal tokens before")
    for at, row in enumerate(rows):
        number = found.first_shown + at
        if number and number % found.block_size == 0:
            line = f"--- block {number // found.block_size} "
            print(_painted(line.ljust(sum(widths) + 4, "-"), palette.edge))
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print(_painted("  ".join(cells).rstrip(), palette.same if number < found.common_tokens else palette.other))
    hidden = [len(each.token_ids) - found.first_shown - len(each.texts) for each in (found.a, found.b)]
    if any(hidden):
        print(f"{hidden[0]} and {hidden[1]} tokens after that are not shown; --all shows more")
    print(f"\n{_verdict(found)}")


def _rows(found: Comparison) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for at in range(max(len(found.a.texts), len(found.b.texts))):
        rows.append((str(found.first_shown + at), _cell(found, found.a, at), _cell(found, found.b, at)))
    return rows or [("", "", "")]


def _cell(found: Comparison, split: Split, at: int) -> str:
    return f"{split.texts[at]!r} {split.token_ids[found.first_shown + at]}" if at < len(split.texts) else ""


def _verdict(found: Comparison) -> str:
    a, b, common = len(found.a.token_ids), len(found.b.token_ids), found.common_tokens
    if a == b == common:
        begin = f"the same {a} tokens"
    else:
        begin = f"{a} and {b} tokens, the first {common} of them equal" if common else f"{a} and {b} tokens, none equal"
    blocks = found.shared_blocks
    number = "no full block" if not blocks else "1 full block" if blocks == 1 else f"{blocks} full blocks"
    return f"{begin}: {number} of {found.block_size} can be shared"


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if colour else text
