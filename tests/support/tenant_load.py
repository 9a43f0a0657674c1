"""A tenant's steady load as a process: `python -m tests.support.tenant_load ADDRESSES`, until SIGTERM.

Its key stands in the environment. Prints what failed, and how many requests did not, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from services.client import ApiError, AsyncStemcacheClient, GenerationRequest, Sampling, Tokens, Trust

NUM_AT_ONCE = 4
SAMPLING = Sampling(max_tokens=16, ignore_eos=True)


async def load(addresses: str) -> dict[str, object]:
    """Requests one after the other from several callers, until it is told to end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    failures: list[str] = []
    num_done = 0
    trust = Trust(Path(os.environ["STEMCACHE_TLS_CA_FILE"]))

    async def caller(seed: int) -> None:
        nonlocal num_done
        rng = random.Random(seed)
        async with AsyncStemcacheClient(addresses, os.environ["STEMCACHE_API_KEY"], 60.0, trust=trust) as client:
            while not stop.is_set():
                prompt = Tokens((*range(64), rng.randrange(100), *range(16)))
                began_s = time.monotonic()
                try:
                    answer = await client.generate(GenerationRequest(prompt, SAMPLING))
                except ApiError as error:
                    failures.append(
                        f"{time.strftime('%T')} after {time.monotonic() - began_s:.1f} s: {error.code.name} {error}"
                    )
                else:
                    assert answer.usage.completion_tokens == 16
                    num_done += 1
                await asyncio.sleep(0.05)

    await asyncio.gather(*map(caller, range(NUM_AT_ONCE)))
    return {"done": num_done, "failures": failures}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(sys.argv[1]))), flush=True)
