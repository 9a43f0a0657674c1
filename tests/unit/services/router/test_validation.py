"""Bad input is refused with the field's name and what would work; good input becomes values with their defaults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stemcache.v1 import inference_pb2 as pb

from cache_store.errors import InvalidRequestError
from cache_store.tokens import pack
from services.router.generation import (
    CacheHints,
    CacheMode,
    ChatPrompt,
    ChatTurn,
    EndTokens,
    Sampling,
    TextPrompt,
    TokenPrompt,
    TurnOpening,
)
from services.router.validation import (
    check_vocabulary,
    generation_spec,
    packed_tokens,
    required_request_id,
)


def request(change: Callable[[pb.GenerateRequest], object] = lambda _: None) -> pb.GenerateRequest:
    message = pb.GenerateRequest(prompt=pb.Prompt(text="hello"))
    change(message)
    return message


def test_absent_fields_take_their_defaults() -> None:
    spec = generation_spec(request())
    assert spec.request_id is None
    assert (spec.model, spec.partition, spec.cache_mode) == ("", "", CacheMode.READ_WRITE)
    assert spec.prompt == TextPrompt("hello")
    assert spec.sampling == Sampling(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=None,
        max_tokens=None,
        min_tokens=0,
        stop=(),
        stop_token_ids=(),
        end_tokens=EndTokens.STOP,
        n=1,
    )


def test_hints_become_values() -> None:
    assert generation_spec(request()).hints == CacheHints("", False, None)
    policy = pb.CachePolicy(session_id="s", session_end=True)
    policy.ttl.FromMilliseconds(1_500)
    assert generation_spec(request(lambda r: r.cache_policy.CopyFrom(policy))).hints == CacheHints("s", True, 1.5)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0, CacheMode.READ_ONLY), (1, CacheMode.READ_ONLY), (2, CacheMode.READ_ONLY), (3, CacheMode.BYPASS)],
)
def test_no_store_works_beside_any_mode(mode: pb.CachePolicy.Mode.ValueType, expected: CacheMode) -> None:
    policy = pb.CachePolicy(mode=mode, no_store=True)
    assert generation_spec(request(lambda r: r.cache_policy.CopyFrom(policy))).cache_mode is expected


def test_a_seed_of_zero_is_a_seed() -> None:
    assert generation_spec(request(lambda r: setattr(r.sampling_params, "seed", 0))).sampling.seed == 0


def test_prompts_of_all_forms() -> None:
    tokens = generation_spec(pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(packed=pack([1, 2])))))
    assert tokens.prompt == TokenPrompt(pack([1, 2]))
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="")])
    opened = generation_spec(pb.GenerateRequest(prompt=pb.Prompt(chat=chat)))
    assert opened.prompt == ChatPrompt((ChatTurn("user", ""),), TurnOpening.ASSISTANT)
    chat.add_generation_prompt = False
    closed = generation_spec(pb.GenerateRequest(prompt=pb.Prompt(chat=chat)))
    assert closed.prompt == ChatPrompt((ChatTurn("user", ""),), TurnOpening.NONE)


BAD: list[tuple[str, Callable[[pb.GenerateRequest], object]]] = [
    ("request_id", lambda r: setattr(r, "request_id", "é" * 65)),
    ("request_id", lambda r: setattr(r, "request_id", "a\x1b[31m")),
    ("cache_policy.partition", lambda r: setattr(r.cache_policy, "partition", "a\nb")),
    ("cache_policy.session_id", lambda r: setattr(r.cache_policy, "session_id", "a\x9b31m")),
    ("prompt", lambda r: r.ClearField("prompt")),
    ("prompt.text", lambda r: setattr(r.prompt, "text", "")),
    ("prompt.token_ids.packed", lambda r: setattr(r.prompt.token_ids, "packed", b"")),
    ("prompt.token_ids.packed", lambda r: setattr(r.prompt.token_ids, "packed", b"abc")),
    ("prompt.chat.messages", lambda r: r.prompt.chat.SetInParent()),
    ("prompt.chat.messages[0].role", lambda r: r.prompt.chat.messages.add(content="x")),
    ("sampling_params.temperature", lambda r: setattr(r.sampling_params, "temperature", -0.1)),
    ("sampling_params.temperature", lambda r: setattr(r.sampling_params, "temperature", 10.1)),
    ("sampling_params.temperature", lambda r: setattr(r.sampling_params, "temperature", float("nan"))),
    ("sampling_params.top_p", lambda r: setattr(r.sampling_params, "top_p", 0.0)),
    ("sampling_params.top_p", lambda r: setattr(r.sampling_params, "top_p", 1.01)),
    ("sampling_params.top_p", lambda r: setattr(r.sampling_params, "top_p", float("nan"))),
    ("sampling_params.max_tokens", lambda r: setattr(r.sampling_params, "max_tokens", 0)),
    (
        "sampling_params.min_tokens",
        lambda r: r.sampling_params.MergeFrom(pb.SamplingParams(min_tokens=3, max_tokens=2)),
    ),
    ("sampling_params.stop", lambda r: r.sampling_params.stop.extend("ab" * 9)),
    ("sampling_params.stop[1]", lambda r: r.sampling_params.stop.extend(["a", ""])),
    ("sampling_params.stop[0]", lambda r: r.sampling_params.stop.append("a" * 257)),
    ("sampling_params.stop_token_ids", lambda r: r.sampling_params.stop_token_ids.extend(range(65))),
    ("sampling_params.n", lambda r: setattr(r.sampling_params, "n", 0)),
    ("sampling_params.n", lambda r: setattr(r.sampling_params, "n", 17)),
    ("cache_policy.partition", lambda r: setattr(r.cache_policy, "partition", "é" * 129)),
    ("cache_policy.mode", lambda r: setattr(r.cache_policy, "mode", 9)),
    ("cache_policy.session_id", lambda r: setattr(r.cache_policy, "session_id", "é" * 65)),
    ("cache_policy.ttl", lambda r: r.cache_policy.ttl.FromMilliseconds(999)),
    ("cache_policy.ttl", lambda r: r.cache_policy.ttl.FromSeconds(0)),
    ("cache_policy.ttl", lambda r: r.cache_policy.ttl.FromSeconds(-5)),
    ("cache_policy.ttl", lambda r: r.cache_policy.ttl.FromSeconds(30 * 86_400 + 1)),
]


@pytest.mark.parametrize(("field", "change"), BAD, ids=[f"{at}-{field}" for at, (field, _) in enumerate(BAD)])
def test_bad_input_is_refused_by_the_name_of_its_field(
    field: str, change: Callable[[pb.GenerateRequest], object]
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        generation_spec(request(change))
    assert error.value.field == field
    assert str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r, "request_id", "é" * 64),
        lambda r: setattr(r.sampling_params, "temperature", 10.0),
        lambda r: setattr(r.sampling_params, "top_p", 1.0),
        lambda r: setattr(r.sampling_params, "max_tokens", 1),
        lambda r: setattr(r.sampling_params, "n", 16),
        lambda r: r.sampling_params.stop.extend(["a" * 256] * 16),
        lambda r: r.sampling_params.stop_token_ids.extend(range(64)),
        lambda r: setattr(r.cache_policy, "partition", "é" * 128),
        lambda r: setattr(r.cache_policy, "mode", 3),
        lambda r: setattr(r.cache_policy, "session_id", "é" * 64),
        lambda r: r.cache_policy.ttl.FromSeconds(1),
        lambda r: r.cache_policy.ttl.FromSeconds(30 * 86_400),
    ],
)
def test_the_limits_themselves_are_allowed(change: Callable[[pb.GenerateRequest], object]) -> None:
    generation_spec(request(change))


def test_token_ids_outside_the_vocabulary() -> None:
    check_vocabulary("prompt.token_ids", pack([0, 99]), 100)
    with pytest.raises(InvalidRequestError, match=r"token id 100 .* 0 to 99"):
        check_vocabulary("prompt.token_ids", pack([0, 100, 5]), 100)


def test_ids_that_have_to_be_there() -> None:
    assert required_request_id("a") == "a"
    with pytest.raises(InvalidRequestError):
        required_request_id("")
    with pytest.raises(InvalidRequestError):
        packed_tokens("token_ids", pb.TokenIds())
