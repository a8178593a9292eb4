"""The table of variables in each role's README, from its argument specs: `make role-docs`.

It stands between two marks; what is around them is written by hand. A role without a README gets one with its
short description.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- variables: `make role-docs` writes them -->", "<!-- end of variables -->"


def roles(root: Path = ROOT) -> list[Path]:
    """The folders of all roles."""
    return sorted(path.parent.parent for path in (root / "roles").glob("*/meta/argument_specs.yml"))


def specs(role: Path) -> dict[str, dict[str, Any]]:
    """Entry point -> its spec, ``main`` first."""
    said = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return dict(sorted(said.items(), key=lambda pair: (pair[0] != "main", pair[0])))


def text_of(value: Any) -> str:
    """A default or a description in one cell."""
    if isinstance(value, list):
        return " ".join(text_of(one) for one in value)
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(str(value).split()).replace("|", "\\|")


def table(role: Path) -> str:
    """Entry points with what they do, and one row for each variable with the entry points that read it."""
    entries = specs(role)
    lines = ["| entry point | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text_of(spec.get('short_description', ''))} |" for name, spec in entries.items()]
    rows: dict[str, list[str]] = {}
    read_by: dict[str, list[str]] = {}
    for name, spec in entries.items():
        for option, about in (spec.get("options") or {}).items():
            kind = str(about.get("type", "str")) + (f" of {about['elements']}" if "elements" in about else "")
            if about.get("required"):
                default = "required"
            elif "default" not in about:
                default = ""
            else:
                default = f"`{text_of(about['default'])}`" if about["default"] != "" else '`""`'
            text = text_of(about.get("description", ""))
            if "choices" in about:
                text += f" One of {', '.join(f'`{text_of(one)}`' for one in about['choices'])}."
            rows[option] = [kind, default, text]
            read_by.setdefault(option, []).append(name)
    if rows:
        lines += ["", "| variable | type | default | what it means | read by |", "|---|---|---|---|---|"]
        for option, cells in rows.items():
            by = "all" if len(read_by[option]) == len(entries) else ", ".join(read_by[option])
            lines.append(f"| `{option}` | {' | '.join(cells)} | {by} |")
    return "\n".join(lines)


def readme(role: Path) -> str:
    """The README as it should be."""
    path = role / "README.md"
    whole = f"{BEGIN}\n{table(role)}\n{END}"
    if not path.exists():
        about = text_of(next(iter(specs(role).values())).get("short_description", ""))
        return f"# {role.name}\n\n{about}\n\n{whole}\n"
    text = path.read_text()
    if BEGIN not in text:
        return f"{text.rstrip()}\n\n{whole}\n"
    before, _, rest = text.partition(BEGIN)
    return before + whole + rest.partition(END)[2]


def main() -> int:
    for role in roles():
        (role / "README.md").write_text(readme(role))
    return 0


if __name__ == "__main__":
    sys.exit(main())
