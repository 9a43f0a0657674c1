"""Colours of tones, on a light and on a dark page. Told apart also by those who do not see red and green apart."""

from __future__ import annotations

from collections.abc import Mapping

from services.loadtest.reporting.marks import Tone

LIGHT: Mapping[Tone, str] = {
    Tone.INK: "#1b2430",
    Tone.MUTED: "#5b6675",
    Tone.GRID: "#e3e7ec",
    Tone.HIT: "#0a7aa8",
    Tone.PARTIAL: "#b28a00",
    Tone.MISS: "#d4501e",
    Tone.SERIES_0: "#3566c9",
    Tone.SERIES_1: "#d9701f",
    Tone.SERIES_2: "#1c9277",
    Tone.SERIES_3: "#b1488f",
    Tone.SERIES_4: "#8a7a12",
    Tone.SERIES_5: "#4aa3d8",
    Tone.SERIES_6: "#8a5a3c",
    Tone.SERIES_7: "#79828f",
}
DARK: Mapping[Tone, str] = {
    Tone.INK: "#e8ecf1",
    Tone.MUTED: "#9aa5b4",
    Tone.GRID: "#2a323d",
    Tone.HIT: "#4cb8e6",
    Tone.PARTIAL: "#e0b93a",
    Tone.MISS: "#f58455",
    Tone.SERIES_0: "#7da2f2",
    Tone.SERIES_1: "#f0995a",
    Tone.SERIES_2: "#4cc4a6",
    Tone.SERIES_3: "#dd86c0",
    Tone.SERIES_4: "#c9b84a",
    Tone.SERIES_5: "#8fd0f5",
    Tone.SERIES_6: "#c0946f",
    Tone.SERIES_7: "#a9b2be",
}
PAPER = "#ffffff"
"""Behind charts that stand alone."""
