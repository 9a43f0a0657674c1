"""How a plan is told to people."""

from __future__ import annotations

from cache_store.planning.fit import Fit, Remedy, RemedyKind
from cache_store.planning.kv_cost import KindCost
from cache_store.planning.report import PlanReport
from cache_store.planning.speed import DecodeStep
from services.cli.output import bytes_text, print_table

_DECODE = ("SEQUENCES", "CONTEXT", "WEIGHTS READ", "KV READ", "KV PART", "STEP AT LEAST", "TOKENS/S AT MOST")
_TENANTS = ("TENANT", "GUARANTEED", "TOKENS", "REQUESTS", "MAX", "REQUESTS", "PINS UP TO")
_WIDTH = 13


def print_report(report: PlanReport) -> None:
    """Prints everything that was asked."""
    _print_model(report)
    _print_cache(report)
    if report.fit is not None:
        _print_fit(report, report.fit)
    if report.tenants:
        _print_tenants(report)
    _print_decode(report)
    _print_break_even(report)


def _line(name: str, text: str) -> None:
    print(f"{name:<{_WIDTH}}{text}")


def _print_model(report: PlanReport) -> None:
    weights = report.weights
    length = f", up to {report.max_tokens:,} tokens" if report.max_tokens else ""
    _line("model", f"{report.model} ({report.model_type}){length}")
    active = (
        f", {_billions(weights.num_active)} for one token" if weights.num_active < weights.num_weights * 0.9 else ""
    )
    size = f"{bytes_text(weights.total_bytes)} ({weights.source}, {weights.dtype})"
    _line("weights", f"{size}: {_billions(weights.num_weights)}{active}")
    if weights.is_quantised:
        _line("", "workers compute float weights only: quantised ones are planned for, and not served")


def _print_cache(report: PlanReport) -> None:
    kv, load = report.kv, report.load
    for each in kv.kinds:
        _line(_kind(each), f"{each.formula} = {bytes_text(each.bytes_per_token)} per token")
    fixed = f" + {bytes_text(kv.fixed_bytes)} fixed" if kv.fixed_bytes else ""
    _line("KV cache", f"{bytes_text(kv.bytes_per_token)} per token{fixed}, {report.kv_dtype}")
    if kv.fixed_bytes:
        _line("", f"{bytes_text(kv.fixed_unaligned_bytes)} fixed where a window begins within a block")
        _line("", f"{bytes_text(kv.bytes_per_token_of_all_layers)} per token if sliding layers kept everything")
    _line("request", f"{load.context:,} tokens take {bytes_text(report.conversation_bytes)}")
    ratio = report.ratio
    equal = f"; {ratio.tokens_like_weights:,} tokens take as much as the weights" if ratio.tokens_like_weights else ""
    _line("KV : weights", f"{ratio.kv_to_weights:.2f} with {_requests(load.num_requests)} of that{equal}")
    if load.used < load.context:
        kept = report.reservation
        _line(
            "reserving",
            f"ahead would take {bytes_text(kept.reserved_bytes)}, {bytes_text(kept.idle_bytes)} of it idle at "
            f"{load.used:,} tokens used; blocks take {bytes_text(kept.paged_bytes)}",
        )


def _print_fit(report: PlanReport, fit: Fit) -> None:
    load, pool = report.load, fit.pool
    print()
    _line(
        "memory",
        f"{bytes_text(fit.memory_bytes)} - {bytes_text(report.weights.total_bytes)} of weights - "
        f"{bytes_text(fit.reserve_bytes)} reserved = "
        + (f"{bytes_text(fit.room_bytes)} for the cache" if fit.room_bytes > 0 else "nothing for the cache"),
    )
    _line("pool", f"{pool.num_blocks:,} blocks of {pool.block_size} tokens = {pool.num_tokens:,} tokens")
    for kind, num_slots in zip(report.kv.kinds, pool.num_slots, strict=True):
        if num_slots < pool.num_blocks:
            _line("", f"window {kind.window}: slots for {num_slots:,} of them, for what runs and for later hits")
    used = f"; {fit.num_requests_as_used:,} at {load.used:,} tokens used" if load.used < load.context else ""
    shared = f", {load.shared_prefix:,} of them shared," if load.shared_prefix else ""
    _line("fits", f"{_requests(fit.num_requests)} of {load.context:,} tokens{shared} at once{used}")
    if report.index is not None:
        low, high = report.index.valkey_bytes
        low7, high7 = report.index.redis7_bytes
        _line(
            "index",
            f"{bytes_text(low)} to {bytes_text(high)} in Valkey 9 for one worker's blocks when the pool is full "
            f"({bytes_text(low7)} to {bytes_text(high7)} in Redis 7)",
        )
    if fit.fits:
        return
    print(f"\n{_requests(load.num_requests)} of {load.context:,} tokens do not fit. Each of these alone would do:")
    for each in fit.remedies:
        print(f"  {_remedy(each)}")


def _remedy(remedy: Remedy) -> str:
    value = remedy.value
    match remedy.kind:
        case RemedyKind.FEWER_REQUESTS:
            return f"{_requests(int(value))} at once (--requests {value}); more wait their turn"
        case RemedyKind.SHORTER_CONTEXT:
            return f"a context of {int(value):,} tokens (--context {value})"
        case RemedyKind.AS_USED:
            return f"nothing, if requests use {int(value):,} tokens on average: blocks are taken as they are filled"
        case RemedyKind.KV_DTYPE:
            return f"keys and values in {value} (--kv-dtype {value})"
        case RemedyKind.WEIGHTS_DTYPE:
            return f"weights in {value} (--dtype {value})"
        case RemedyKind.MORE_MEMORY:
            return f"{bytes_text(int(value))} of memory"
        case RemedyKind.MORE_WORKERS:
            return f"{value} such workers, each with its own copy of the weights"


def _print_tenants(report: PlanReport) -> None:
    print(f"\nblocks of tenants on one worker; requests of {report.load.context:,} tokens:")
    print_table(
        _TENANTS,
        [
            (
                each.tenant,
                f"{each.guaranteed_blocks:,}",
                f"{each.guaranteed_tokens:,}",
                f"{each.guaranteed_requests:,}",
                f"{each.max_blocks:,}",
                f"{each.max_requests:,}",
                f"{each.max_pinned_blocks:,}",
            )
            for each in report.tenants
        ],
    )


def _print_decode(report: PlanReport) -> None:
    print("\na decode step reads all weights that its tokens pass, and every conversation's cache:")
    print_table(_DECODE, [_decode_row(each) for each in report.decode])
    if not any(each.step_s for each in report.decode):
        print("(times: add --memory-bandwidth)")


def _decode_row(step: DecodeStep) -> tuple[str, ...]:
    time = _seconds(step.step_s) if step.step_s else "-"
    speed = f"{step.num_sequences / step.step_s:,.0f}" if step.step_s else "-"
    sizes = (bytes_text(step.weights_bytes), bytes_text(step.kv_bytes), f"{step.kv_part:.0%}")
    return (f"{step.num_sequences:,}", f"{step.context:,}", *sizes, time, speed)


def _print_break_even(report: PlanReport) -> None:
    found = report.break_even
    print(
        f"\nto have {found.num_tokens:,} tokens back: load {bytes_text(found.load_bytes)} or compute "
        f"{found.compute_flops / 1e12:,.1f} TFLOP"
    )
    if not found.compute_s:
        print(
            f"loading is the faster where the link moves more than {found.bytes_per_flop * 1e12 / 1e9:.3g} GB/s for "
            "each TFLOPS that prefill reaches (times: add --link and --compute or --prefill-speed)"
        )
        return
    print(f"computing takes {_seconds(found.compute_s)}; loading is the faster above {_rate(found.link_bytes_per_s)}")
    if found.load_s:
        ratio = found.compute_s / found.load_s
        faster = f"{ratio:,.1f} times as fast as" if ratio >= 1 else f"{1 / ratio:,.1f} times slower than"
        print(f"loading takes {_seconds(found.load_s)}: {faster} computing")


def _kind(each: KindCost) -> str:
    return f"window {each.window}" if each.window else str(each.kind)


def _requests(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"


def _billions(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.2f} ms"
