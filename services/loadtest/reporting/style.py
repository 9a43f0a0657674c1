"""The style sheet of the page: light or dark as the reader's system is, for a screen or paper."""

from __future__ import annotations

from collections.abc import Mapping

from services.loadtest.reporting.marks import Tone
from services.loadtest.reporting.palette import DARK, LIGHT

_PAGE_LIGHT = {"paper": "#f6f7f9", "card": "#ffffff", "edge": "#e1e5ea", "warn": "#fff4dc", "warn-ink": "#6b4a00"}
_PAGE_DARK = {"paper": "#11161d", "card": "#1a212b", "edge": "#2c3542", "warn": "#3a2f12", "warn-ink": "#f2d58a"}

_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 64px}
header h1{font-size:1.55rem;line-height:1.25;margin:0 0 4px}
header p{margin:0;color:var(--muted)}
h2{font-size:1.1rem;margin:34px 0 10px}
h3{font-size:.95rem;margin:0 0 2px}
.note,.card p{color:var(--muted);margin:0 0 8px;font-size:.86rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0 0}
.tile{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:1.45rem;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.25}
.tile span{color:var(--muted);font-size:.84rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px 16px;margin:0}
.card svg{display:block;width:100%;height:auto;font-family:inherit}
.warn{background:var(--warn);color:var(--warn-ink);border-radius:10px;padding:10px 14px 10px 32px;margin:18px 0 0}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--edge);border-radius:10px;margin:0 0 14px}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:6px 14px;border-bottom:1px solid var(--edge);vertical-align:top}
tr:last-child td{border-bottom:0}
th{color:var(--muted);font-weight:600;white-space:nowrap}
td{overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}
.cols{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:0 16px;align-items:start}
.bar{display:flex;height:12px;min-width:180px;border-radius:4px;overflow:hidden;background:var(--grid)}
.bar i{display:block;height:100%}
details{margin:0 0 12px}summary{cursor:pointer;color:var(--muted)}
pre{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px 16px;overflow-x:auto;
font-size:.82rem}
footer{color:var(--muted);font-size:.84rem;margin-top:40px}
@media print{body{background:#fff}.card,.wide,.tile{break-inside:avoid}}
"""


def style() -> str:
    """All rules."""
    tones = "".join(
        f".s-{tone}{{stroke:var(--{tone})}}.f-{tone}{{fill:var(--{tone})}}.b-{tone}{{background:var(--{tone})}}"
        for tone in Tone
    )
    light, dark = _variables(LIGHT, _PAGE_LIGHT), _variables(DARK, _PAGE_DARK)
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}{tones}"
    )


def _variables(tones: Mapping[Tone, str], page: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in [*tones.items(), *page.items()])
