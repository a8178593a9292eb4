"""What happens to texts on their way from a tool to a parser, and worse: lines lost, doubled, cut, joined, wider,
with other words and numbers in their cells, with another text of the tool in between."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.fuzz.texts import Text

DATES = ("2031-07-19 23:58:51", "Sat Jul 19 23:58:51 2031", "23:58:51", "2031/07/19 23:58:51.417")
WORDS = (
    *("N/A", "[N/A]", "ERR!", "-", "", "0", "[Unknown Error]", "[GPU is lost]", "Not Supported", "[Not Supported]"),
    *(
        "65535",
        "-1",
        "007",
        "1e9",
        "99999999999999999999",
        "9" * 5000,
        "12,5",
        "3.",
        ".5",
        "NaN",
        "inf",
        "0x1F",
        "℃",
        "½",
        "٣",
        "²",
    ),
    *("|", "||", "/", ":", "{", "}", "[", "]", "(", ")", "%", "\x00", "\x1b[4m", "\x1b[0m", "\t", "\r", "\r\n", "\x85"),
    *("null", "true", "1e999", "[]", "[" * 2_000, '{"a":' * 2_000),
    *DATES,
    *("Unable to determine the device handle for GPU", "No devices were found", "None", "OK", "Alarm", "'", '"', "\\"),
)
CELL = re.compile(r"[^\s|/]+")
LOGGED = (
    "2031-07-19 23:58:51,417 WARN [worker-61] retry 8 of 97 after 4306 ms",
    "Jul 19 23:58:51 host kernel: [86399.417203] usb 3-11: reset high-speed device number 29",
    "[W719 23:58:51.417203] Warning: 53 of 677 requests took longer than 8.25 s",
    '{"time": "2031-07-19T23:58:51.417Z", "level": "info", "took": 4306}',
)
"""Lines of other programs, with dates and numbers that are no readings."""


def mutate(rng: random.Random, text: Text, others: tuple[Text, ...]) -> str:
    """A text with one to six changes; now and then with none."""
    changed = text.text
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 6))):
        changed = rng.choice(CHANGES)(rng, changed, others)
    return changed


def _lines(change: Callable[[random.Random, list[str]], None]) -> Callable[[random.Random, str, tuple[Text, ...]], str]:
    def changed(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
        lines = text.split("\n")
        change(rng, lines)
        return "\n".join(lines)

    return changed


def _drop_line(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


def _double_line(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines.insert(at, lines[at])


def _move_line(rng: random.Random, lines: list[str]) -> None:
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)


def _join_lines(rng: random.Random, lines: list[str]) -> None:
    if len(lines) > 1:
        at = rng.randrange(len(lines) - 1)
        lines[at : at + 2] = [lines[at] + lines[at + 1]]


def _cut_line(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


def _narrow(rng: random.Random, lines: list[str]) -> None:
    width = rng.choice((20, 40, 60, 79))
    lines[:] = [line[:width] for line in lines]


def _cut(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _behead(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    return text[rng.randrange(len(text) + 1) :]


def _other_cell(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    """A word in place of a cell's; of the cells of the text itself, too."""
    cells = list(CELL.finditer(text))
    if not cells:
        return text
    cell = rng.choice(cells)
    return text[: cell.start()] + rng.choice((*WORDS, rng.choice(cells).group())) + text[cell.end() :]


def _other_number(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    numbers = list(re.finditer(r"\d+", text))
    if not numbers:
        return text
    number = rng.choice(numbers)
    return text[: number.start()] + str(rng.choice((0, 1, 7, 65535, rng.randrange(10**9)))) + text[number.end() :]


def _insert(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(WORDS) + text[at:]


def _delete(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 2, 5, 30)) :]


def _spaces(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    return text.replace("  ", rng.choice(("   ", " ", "\t", "")))


def _clock(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    """A date in a number's place, or before or behind it, with the number's unit left."""
    numbers = list(re.finditer(r"\d+(?:\.\d+)?", text))
    if not numbers:
        return text
    number = rng.choice(numbers)
    start, end = rng.choice(((number.start(), number.end()), (number.start(),) * 2, (number.end(),) * 2))
    return text[:start] + rng.choice(DATES) + text[end:]


def _log(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(LOGGED))
    return "\n".join(lines)


def _splice(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    other = rng.choice(others).text.split("\n")
    start = rng.randrange(len(other))
    part = "\n".join(other[start : start + rng.choice((1, 3, 10, 100))])
    lines = text.split("\n")
    at = rng.randrange(len(lines) + 1)
    return "\n".join([*lines[:at], part, *lines[at:]])


def _whole(rng: random.Random, text: str, others: tuple[Text, ...]) -> str:
    return rng.choice(
        (
            text.replace("\n", "\r\n"),
            text + text,
            "".join(f"{line}\n{line}\n" for line in text.split("\n")),
            text.replace("|", " | "),
            text.upper(),
            text.replace("\n", "\n\n"),
        )
    )


CHANGES: tuple[Callable[[random.Random, str, tuple[Text, ...]], str], ...] = (
    *(_lines(change) for change in (_drop_line, _double_line, _move_line, _join_lines, _cut_line, _narrow)),
    *(_cut, _behead, _other_cell, _other_cell, _other_number, _insert, _delete, _spaces, _clock, _log, _splice, _whole),
)
