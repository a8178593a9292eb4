"""What the inventory tells for people beside the table of cards: how cards are linked, and who holds them. Pure."""

from __future__ import annotations

from typing import Any

from runtime.agent.hardware.virtual import VENDOR as VIRTUAL


def link_lines(report: dict[str, Any]) -> list[str]:
    """A line for each NVLink domain; nothing where there are no two cards to be linked."""
    if len(_whole(report)) < 2:
        return []
    domains = report["nvlink_domains"]
    if domains is None:
        return ["NVLink: not known"]
    numbers = {card["uuid"]: card["index"] for card in _whole(report)}

    def place(uuid: str) -> tuple[bool, int, str]:
        """By number; behind them those that are not listed, and those without one."""
        number = numbers.get(uuid)
        return number is None, number or 0, uuid

    return [
        f"NVLink domain: {', '.join(_label(report, uuid) for uuid in sorted(domain, key=place))}" for domain in domains
    ] or ["NVLink: none between the cards"]


def without_links(report: dict[str, Any]) -> list[str]:
    """What the node cannot do for want of links between its cards."""
    if len(_whole(report)) < 2:
        return []
    if report["nvlink_domains"] is None:
        return ["NVLink not known: cannot run tasks that want their cards in one NVLink domain"]
    if not any(len(domain) > 1 for domain in report["nvlink_domains"]):
        return ["no NVLink: cannot run tasks that want several cards in one NVLink domain"]
    return []


def without_memory(report: dict[str, Any]) -> list[str]:
    """What cards cannot do that tell no memory."""
    cards = [_label(report, card["uuid"]) for card in _real(report) if card["memory_total_mib"] is None]
    return [f"memory of {', '.join(cards)} not known: cannot run tasks that ask for min_memory_mib"] if cards else []


def holder_lines(report: dict[str, Any]) -> list[str]:
    """A line for each process, and for memory that none holds."""
    if not _real(report):
        return []
    holders = report["gpu_holders"]
    if holders is None:
        return ["holders of cards: not known"]
    return [_holder(report, one) for one in holders] or ["holders of cards: none"]


def _holder(report: dict[str, Any], one: dict[str, Any]) -> str:
    card = _label(report, one["uuid"])
    size = None if one["memory_mib"] is None else f"{one['memory_mib']} MiB"
    if one["pid"] is None:
        return f"{card} is held by no process that is seen: {size or 'memory'} in use"
    where = f"in {one['container_id'][:40]}" if one["container_id"] else None
    facts = ", ".join(fact for fact in (f"process {one['pid']}", size, where) if fact)
    return f"{card} is held by {one['name'] or 'a program'} ({facts})"


def _real(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [card for card in report["gpus"] if card["vendor"] != VIRTUAL]


def _whole(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [card for card in _real(report) if card["parent_uuid"] is None]


def _label(report: dict[str, Any], uuid: str) -> str:
    """By its number where it has one of its own; slices of a card share theirs."""
    index = {card["uuid"]: card["index"] for card in _whole(report)}.get(uuid)
    return uuid if index is None else f"card {index}"
