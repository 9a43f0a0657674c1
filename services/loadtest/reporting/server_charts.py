"""Charts of what the server said of itself: whose blocks lay in which tier, and what waited. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.loadtest.records import ServerSample, TenantSample
from services.loadtest.reporting.marks import SERIES, Point, Sheet, Tone
from services.loadtest.reporting.plot import Axis, Entry, Plot, short
from services.loadtest.reporting.scales import Linear, from_zero

_OTHERS = "all others"
_MOST_TENANTS = len(SERIES) - 1


@dataclass(frozen=True, slots=True)
class _Tier:
    name: str
    blocks: Callable[[TenantSample], int]


_TIERS = (
    _Tier("device", lambda tenant: tenant.used_blocks),
    _Tier("host", lambda tenant: tenant.host_blocks),
    _Tier("disk", lambda tenant: tenant.disk_blocks),
)


def occupancy(samples: Sequence[ServerSample]) -> list[Sheet]:
    """One chart per tier that has room: blocks over all workers, tenants upon each other."""
    return [_occupancy(samples, tier) for tier in _TIERS if max(_rooms(samples, tier), default=0)]


def _occupancy(samples: Sequence[ServerSample], tier: _Tier) -> Sheet:
    plot = Plot(_time_axis(samples), Axis("blocks, over all workers", from_zero(map(float, _rooms(samples, tier)))))
    tenants = _largest(samples, tier)
    lower: list[Point] = [(each.at_s, 0.0) for each in samples]
    for name, tone in zip([*tenants, _OTHERS], SERIES, strict=False):
        upper = [(x, y + _blocks(each, tier, name, tenants)) for each, (x, y) in zip(samples, lower, strict=True)]
        if upper != lower:
            plot.band(lower, upper, Entry(short(name), tone))
        lower = upper
    room = [(each.at_s, float(room)) for each, room in zip(samples, _rooms(samples, tier), strict=True)]
    plot.line(room, Entry("room", Tone.INK, dashed=True), 1.5)
    description = "Blocks that tenants hold or have cached, upon each other; the dashed line is all there is."
    return plot.sheet(f"occupancy-{tier.name}", f"Occupancy of the {tier.name} tier, by tenant", description)


def _rooms(samples: Sequence[ServerSample], tier: _Tier) -> list[int]:
    if tier.name == "device":
        return [sum(worker.total_blocks for worker in each.workers) for each in samples]
    return [
        sum(below.total_blocks for worker in each.workers for below in worker.tiers if below.tier == tier.name)
        for each in samples
    ]


def _largest(samples: Sequence[ServerSample], tier: _Tier) -> list[str]:
    """Tenants with most blocks, by name."""
    most: dict[str, int] = {}
    for each in samples:
        now: dict[str, int] = {}
        for worker in each.workers:
            for tenant in worker.tenants:
                now[tenant.tenant] = now.get(tenant.tenant, 0) + tier.blocks(tenant)
        for name, blocks in now.items():
            most[name] = max(most.get(name, 0), blocks)
    return sorted(sorted(most, key=lambda name: (-most[name], name))[:_MOST_TENANTS])


def _blocks(sample: ServerSample, tier: _Tier, name: str, named: Sequence[str]) -> float:
    tenants = (tenant for worker in sample.workers for tenant in worker.tenants)
    if name == _OTHERS:
        return float(sum(tier.blocks(tenant) for tenant in tenants if tenant.tenant not in named))
    return float(sum(tier.blocks(tenant) for tenant in tenants if tenant.tenant == name))


def requests_over_time(samples: Sequence[ServerSample]) -> Sheet:
    """What ran and what waited at the workers."""
    running = [(each.at_s, float(sum(worker.running_requests for worker in each.workers))) for each in samples]
    waiting = [(each.at_s, float(sum(worker.waiting_requests for worker in each.workers))) for each in samples]
    plot = Plot(_time_axis(samples), Axis("requests", from_zero(y for _, y in [*running, *waiting])))
    plot.line(running, Entry("running", Tone.SERIES_0))
    plot.line(waiting, Entry("waiting", Tone.SERIES_1))
    return plot.sheet("requests-over-time", "Requests at the workers", "Running and waiting, over all workers.")


def _time_axis(samples: Sequence[ServerSample]) -> Axis:
    low, high = samples[0].at_s, samples[-1].at_s
    return Axis("since the start, s", Linear(low, max(high, low + 1e-3)))
