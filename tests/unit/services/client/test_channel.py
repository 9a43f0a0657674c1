"""Where a channel goes: one router, or several in order of preference."""

from __future__ import annotations

import pytest

from services.client import AsyncStemcacheClient, GenerationRequest, StemcacheClient
from services.client.channel import channel_target
from tests.support.scripted_api import ScriptedApi

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("router:7420", "router:7420"),
        ("dns:///routers:7420", "dns:///routers:7420"),
        ("10.0.0.1:7420, 10.0.0.2:7420", "ipv4:10.0.0.1:7420,10.0.0.2:7420"),
        ("[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_targets(address: str, target: str) -> None:
    assert channel_target(address) == target


@pytest.mark.parametrize(
    "address", ["a:1,b:2", "10.0.0.1:1,[::1]:1", "10.0.0.1,10.0.0.2", "10.0.0.1:1,", "::1:1,::2:1"]
)
def test_several_that_are_not_of_one_kind_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="dns:///"):
        channel_target(address)


def test_calls_go_to_the_first_that_can_be_reached(api: ScriptedApi) -> None:
    with StemcacheClient(f"{NOBODY},{api.address}", "key") as client:
        assert client.generate(GenerationRequest("text")).text == "hi"


async def test_so_they_do_in_asyncio(api: ScriptedApi) -> None:
    async with AsyncStemcacheClient(f"{NOBODY},{api.address}", "key") as client:
        assert (await client.generate(GenerationRequest("text"))).text == "hi"
