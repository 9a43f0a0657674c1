"""A gRPC server on loopback that answers as each test says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from stemcache.v1 import inference_pb2_grpc as rpc

from tests.support.scripted_api import ScriptedApi


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    scripted = ScriptedApi()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    rpc.add_InferenceServiceServicer_to_server(scripted, server)
    scripted.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield scripted
    server.stop(grace=None).wait(timeout=5)
