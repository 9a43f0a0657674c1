"""`python -m services.router.health_check HOST:PORT [SERVICE]`: for container engines that can only run a command.

Exit status 0 where the health service there says SERVING; 1, with a sentence, else.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def main(arguments: list[str]) -> int:
    """Asks once."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python -m services.router.health_check HOST:PORT [SERVICE]\n")
        return 2
    address, service = arguments[0], arguments[1] if len(arguments) == 2 else ""
    with grpc.insecure_channel(address) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            sys.stderr.write(f"{address} does not answer: {error}\n")
            return 1
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    sys.stdout.write(f"{address} {service or 'process'}: {state}\n")
    return 0 if state == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
