"""What the options of `stemcache replay` mean: tenants with their traces and quotas, capacities.

[NAME=]PATH[,min=25%][,max=50%][,weight=2][,rate=4][,sessions=0/5]
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cache_store.errors import InvalidRequestError
from cache_store.quota import TenantQuota, TierShare
from cache_store.replay.trace import Trace
from cache_store.tier_kind import TierKind

MAX_BLOCKS = 1 << 26
"""Each is an object of some hundred bytes."""
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9_-]+)=(?P<rest>.+)")
_BYTES = re.compile(r"(?P<value>[0-9.]+)\s*(?P<unit>[KMGT]i?B|B)")
_UNITS = {"B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """One TRACE argument."""

    name: str
    path: str
    quota: TenantQuota
    rate: float
    sessions: tuple[int, int]
    """(k, n): sessions whose number is k modulo n."""

    def shape(self, trace: Trace) -> Trace:
        """The part of the trace that is meant, at its rate."""
        k, n = self.sessions
        part = trace if n == 1 else trace.select(lambda session: session % n == k)
        return part if self.rate == 1 else part.faster(self.rate)


@dataclass(frozen=True, slots=True)
class ScannerSpec:
    """The --scanner argument."""

    rate: float
    quota: TenantQuota


def parse_tenant(text: str) -> TenantSpec:
    """Raises InvalidRequestError."""
    path, *settings = text.split(",")
    named = _NAMED.fullmatch(path)
    name, path = (named["name"], named["rest"]) if named else (Path(path).name.split(".")[0], path)
    fields = _fields(settings, text, {"min", "max", "weight", "rate", "sessions"})
    rate = _number("rate", fields.get("rate", "1"))
    if not rate > 0:
        raise InvalidRequestError("rate", f"rate is {rate:g} in {text!r}; it is above 0")
    return TenantSpec(name, path, _quota(fields), rate, _sessions(fields.get("sessions", "0/1")))


def parse_scanner(text: str) -> ScannerSpec:
    """`RATE[,min=…][,max=…][,weight=…]`. Raises InvalidRequestError."""
    rate, *settings = text.split(",")
    return ScannerSpec(_number("scanner", rate), _quota(_fields(settings, text, {"min", "max", "weight"})))


def parse_capacity(text: str, num_unique: int, bytes_per_block: float) -> int:
    """Blocks of `5%` (of the unique blocks), `8GiB` (needs the bytes of a block) or `1000`.

    Raises InvalidRequestError.
    """
    if text.endswith("%"):
        num_blocks = int(num_unique * _number("capacity", text[:-1]) / 100)
    elif (size := _BYTES.fullmatch(text)) is not None:
        if bytes_per_block <= 0:
            raise InvalidRequestError("capacity", f"{text} needs --kv-bytes-per-token, to know the size of a block")
        num_blocks = int(float(size["value"]) * _UNITS[size["unit"]] / bytes_per_block)
    else:
        num_blocks = int(_number("capacity", text))
    if not 1 <= num_blocks <= MAX_BLOCKS:
        raise InvalidRequestError(
            "capacity", f"a capacity of {text} is {num_blocks} blocks; 1 to {MAX_BLOCKS} can be replayed"
        )
    return num_blocks


def parse_factors(host: str, disk: str, num_blocks: int) -> tuple[float, float]:
    """Sizes of the host pool and of the disk as multiples of at most `num_blocks`. Raises InvalidRequestError."""
    factors = _number("host-factor", host), _number("disk-factor", disk)
    for name, factor in zip(("host-factor", "disk-factor"), factors, strict=True):
        if not 0 <= factor * num_blocks <= MAX_BLOCKS:
            raise InvalidRequestError(name, f"{name} is {factor:g}, which is no number of blocks up to {MAX_BLOCKS}")
    if factors[1] and not factors[0]:
        raise InvalidRequestError("disk-factor", "a disk tier needs a host tier; give --host-factor too, like 1")
    return factors


def parse_share(name: str, text: str) -> float:
    """`25%` or `0.25`. Raises InvalidRequestError."""
    share = _number(name, text[:-1]) / 100 if text.endswith("%") else _number(name, text)
    if not 0 <= share <= 1:
        raise InvalidRequestError(name, f"{name} is {text}; a share is 0 to 1, or 0% to 100%")
    return share


def _quota(fields: dict[str, str]) -> TenantQuota:
    share = TierShare(parse_share("min", fields.get("min", "0")), parse_share("max", fields.get("max", "1")))
    return TenantQuota(MappingProxyType({TierKind.DEVICE: share}), weight=_number("weight", fields.get("weight", "1")))


def _fields(settings: list[str], text: str, known: set[str]) -> dict[str, str]:
    fields = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in known:
            raise InvalidRequestError("trace", f"{setting!r} in {text!r} is none of {', '.join(sorted(known))}=VALUE")
        fields[name] = value
    return fields


def _sessions(text: str) -> tuple[int, int]:
    k, slash, n = text.partition("/")
    if not slash or not (k.isdecimal() and n.isdecimal()) or not 0 <= int(k) < int(n):
        raise InvalidRequestError("sessions", f"sessions={text} is no part; 0/5 is the first of five")
    return int(k), int(n)


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequestError(name, f"{name} is {text!r}; a number is needed")
    return number
