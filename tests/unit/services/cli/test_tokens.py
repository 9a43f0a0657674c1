"""`stemcache tokens` against a server whose tokens are letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from stemcache.v1 import inference_pb2 as pb
from stemcache.v1 import inference_pb2_grpc as rpc

from cache_store.tokens import pack, unpack
from services.cli.exit_codes import ExitCode
from services.cli.main import main
from services.cli.tokens import common_prefix

Capture = pytest.CaptureFixture[str]


class Letters(rpc.InferenceServiceServicer):
    """A token is a letter; a chat begins each turn with its role."""

    def __init__(self) -> None:
        self.num_models = 1

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802
        models = [pb.Model(name=f"m{number}", block_size=4) for number in range(self.num_models)]
        return pb.ListModelsResponse(models=models)

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeResponse:  # noqa: N802
        prompt = request.prompt
        text = prompt.text or "".join(f"<{each.role}>{each.content}" for each in prompt.chat.messages)
        ids = pack(ord(letter) for letter in text)
        return pb.TokenizeResponse(token_ids=pb.TokenIds(packed=ids), block_count=len(text) // 4)

    def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: grpc.ServicerContext
    ) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text="".join(map(chr, unpack(request.token_ids.packed))))


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def flags(letters: Letters) -> Iterator[list[str]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    rpc.add_InferenceServiceServicer_to_server(letters, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield ["--address", f"127.0.0.1:{port}", "--key", "k"]
    server.stop(grace=None).wait(timeout=5)


def told(capsys: Capture, *arguments: str) -> str:
    assert main(["tokens", *arguments]) == ExitCode.OK
    return capsys.readouterr().out


def test_prompts_that_part_early_share_no_block(flags: list[str], capsys: Capture) -> None:
    out = told(capsys, "Who's there", "Who is there", *flags)
    assert out.splitlines()[-1] == "11 and 12 tokens, the first 3 of them equal: no full block of 4 can be shared"


def test_full_blocks_before_the_difference_can_be_shared(flags: list[str], capsys: Capture) -> None:
    out = told(capsys, "abcdefghiX", "abcdefghiYZ", *flags)
    assert out.splitlines()[-1] == "10 and 11 tokens, the first 9 of them equal: 2 full blocks of 4 can be shared"
    assert "block 2" in out
    assert any("'X' 88" in line and "'Y' 89" in line for line in out.splitlines()), "they stand side by side"
    assert "\x1b[" not in out, "no colours where nobody looks"


def test_equal_prompts_and_such_with_nothing_in_common(flags: list[str], capsys: Capture) -> None:
    assert "the same 5 tokens: 1 full block of 4 can be shared" in told(capsys, "abcde", "abcde", *flags)
    assert "none equal: no full block" in told(capsys, "abcde", "xyz", *flags)


def test_prompts_come_from_files_as_chats_and_as_messages(flags: list[str], capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text('[{"role": "user", "content": "hi"}]')
    document = json.loads(told(capsys, f"@{file}", "hi", "--chat", "--json", *flags))
    assert document["a"]["token_ids"] == document["b"]["token_ids"] == list(map(ord, "<user>hi"))
    assert (document["common_tokens"], document["shared_blocks"], document["block_size"]) == (8, 2, 4)
    with_system = json.loads(told(capsys, "hi", "hi", "--system", "be brief", "--json", *flags))
    assert bytes(with_system["a"]["token_ids"]).decode() == "<system>be brief<user>hi"


def test_long_prompts_are_shown_around_their_difference(flags: list[str], capsys: Capture) -> None:
    a, b = "x" * 100 + "a" * 50, "x" * 100 + "b" * 60
    out = told(capsys, a, b, *flags)
    assert "84 equal tokens before" in out
    assert "34 and 44 tokens after that are not shown" in out
    assert "84 equal tokens" not in told(capsys, a, b, "--all", *flags)


def test_bad_input_says_what_would_work(flags: list[str], letters: Letters, capsys: Capture, tmp_path: Path) -> None:
    assert main(["tokens", '[{"role": "user", "content": 7}]', "b", *flags]) == ExitCode.REFUSED
    assert "a role and a content" in capsys.readouterr().err
    assert main(["tokens", f"@{tmp_path / 'none'}", "b", *flags]) == ExitCode.REFUSED
    letters.num_models = 2
    assert main(["tokens", "a", "b", *flags]) == ExitCode.REFUSED
    assert "name one with --model" in capsys.readouterr().err
    assert main(["tokens", "a", "b", "--model", "m1", *flags]) == ExitCode.OK


def test_what_is_common_is_where_they_first_differ() -> None:
    assert common_prefix((1, 2, 3), (1, 2, 4, 5)) == 2
    assert common_prefix((1, 2), (1, 2, 3)) == 2
    assert common_prefix((), (1,)) == 0
