"""Charts as PNG files, light, for documents and chats that show no HTML. Draws twice as large and shrinks."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from services.loadtest.reporting.marks import Anchor, Area, Dot, Line, Mark, Point, Sheet, Text, Tone
from services.loadtest.reporting.palette import LIGHT, PAPER

_SCALE = 2
"""Pixels per unit in the file."""
_OVERSAMPLING = 2
_DRAWN = _SCALE * _OVERSAMPLING
_TITLE_HEIGHT = 34.0
_DASH, _GAP = 5.0, 4.0
_PILLOW_ANCHORS = {Anchor.START: "ls", Anchor.MIDDLE: "ms", Anchor.END: "rs"}


def write_png(sheet: Sheet, path: Path) -> None:
    """One file, with the chart's title above it."""
    size = (round(sheet.width * _DRAWN), round((sheet.height + _TITLE_HEIGHT) * _DRAWN))
    image = Image.new("RGB", size, PAPER)
    _draw(image, Text((16, 26), sheet.title, Tone.INK, size=15), 0.0)
    for mark in sheet.marks:
        _draw(image, mark, _TITLE_HEIGHT)
    image.reduce(_OVERSAMPLING).save(path)


def _draw(image: Image.Image, mark: Mark, down: float) -> None:
    if isinstance(mark, Text):
        _draw_text(image, mark, down)
        return
    opacity = mark.opacity if isinstance(mark, Area | Dot) else 1.0
    canvas = ImageDraw.Draw(image, "RGBA")
    fill = (*_rgb(LIGHT[mark.tone]), round(opacity * 255))
    if isinstance(mark, Area):
        canvas.polygon([_scaled(each, down) for each in mark.points], fill=fill)
    elif isinstance(mark, Dot):
        canvas.circle(_scaled(mark.at, down), mark.radius * _DRAWN, fill=fill)
    else:
        _draw_line(canvas, mark, fill, down)


def _draw_line(canvas: ImageDraw.ImageDraw, line: Line, fill: tuple[int, ...], down: float) -> None:
    width = max(1, round(line.width * _DRAWN))
    if len(line.points) < 2:
        return
    for part in _dashes(line.points) if line.dashed else [line.points]:
        canvas.line([_scaled(each, down) for each in part], fill=fill, width=width, joint="curve")


def _dashes(points: tuple[Point, ...]) -> list[tuple[Point, ...]]:
    """Pieces of a line to draw, each straight."""
    found: list[tuple[Point, ...]] = []
    walked = 0.0
    for begin, end in pairwise(points):
        length = math.dist(begin, end)
        at = 0.0
        while at < length:
            phase = (walked + at) % (_DASH + _GAP)
            step = min(length - at, (_DASH if phase < _DASH else _DASH + _GAP) - phase) or length - at
            if phase < _DASH:
                found.append((_between(begin, end, at / length), _between(begin, end, (at + step) / length)))
            at += step
        walked += length
    return found


def _between(begin: Point, end: Point, part: float) -> Point:
    return (begin[0] + (end[0] - begin[0]) * part, begin[1] + (end[1] - begin[1]) * part)


def _draw_text(image: Image.Image, text: Text, down: float) -> None:
    font = _font(text.size)
    if text.upright:
        canvas = ImageDraw.Draw(image)
        canvas.text(
            _scaled(text.at, down), text.text, fill=LIGHT[text.tone], font=font, anchor=_PILLOW_ANCHORS[text.anchor]
        )
        return
    length, size = math.ceil(font.getlength(text.text)), math.ceil(text.size * _DRAWN * 1.4)
    stripe = Image.new("RGB", (max(1, length), size), PAPER)
    ImageDraw.Draw(stripe).text((0, text.size * _DRAWN), text.text, fill=LIGHT[text.tone], font=font, anchor="ls")
    turned = stripe.rotate(90, expand=True)
    x, y = _scaled(text.at, down)
    image.paste(turned, (round(x - text.size * _DRAWN), round(y - turned.height / 2)))


def _scaled(point: Point, down: float) -> Point:
    return (point[0] * _DRAWN, (point[1] + down) * _DRAWN)


@cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font that Pillow brings along."""
    return ImageFont.load_default(size * _DRAWN)


def _rgb(colour: str) -> tuple[int, int, int]:
    return (int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16))
