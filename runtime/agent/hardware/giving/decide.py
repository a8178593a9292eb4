"""From a description, the cards of a task and the facts of the host to what the task gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.agent.hardware.giving.description import Card, CardOptions, Giving, Host, NotGiven, Number


def to_container(about: Giving, cards: Sequence[Card], listed: Sequence[Card], host: Host) -> CardOptions:
    """By the vendor's runtime where the engine has it; else device files, what the driver has for programs, and the
    libraries' variables with the numbers as they are inside, where only these cards are. Raises NotGiven."""
    for runtime in about.runtimes:
        if runtime.name in host.runtimes:
            ids = numbers(cards, listed, runtime.number)
            return CardOptions({runtime.variable: ids}, runtime.name, named=f"{runtime.variable}={ids}")
    inside = ",".join(str(number) for number in range(len(cards)))
    own = files_of(about, cards, listed, host)
    files = (*own, *about.control)
    groups = sorted({file.group for file in host.files if file.path in files and file.group})
    return CardOptions(
        dict.fromkeys(about.variables, inside),
        files=files,
        groups=tuple(groups),
        mounts=tuple(place for place in about.mounts if place in host.places),
        named=",".join(own),
    )


def to_process(about: Giving, cards: Sequence[Card], listed: Sequence[Card], host: Host) -> CardOptions:
    """Device files, and the library's variable with the numbers as they are on this host. No group: it would let the
    process read what the host's files give that group. Raises NotGiven."""
    own = files_of(about, cards, listed, host)
    environment = {about.variables[0]: numbers(cards, listed, about.number)}
    return CardOptions(environment, files=(*own, *about.control), named=",".join(own))


def files_of(about: Giving, cards: Sequence[Card], listed: Sequence[Card], host: Host) -> tuple[str, ...]:
    """The cards' own device files, all of which are there, and those that every task needs are there too."""
    here = {file.path for file in host.files}
    own: list[str] = []
    for card in cards:
        for path in about.files(card, listed, host):
            if path not in here:
                raise NotGiven(f"{path} is missing on this node, without which card {card.gpu.uuid} cannot be given")
            if path in own:
                raise NotGiven(f"{path} would be the file of two of the task's cards")
            own.append(path)
    for path in about.control:
        if path not in here:
            raise NotGiven(f"{path} is missing on this node, without which no {cards[0].gpu.vendor} card can be given")
    return tuple(own)


def numbers(cards: Sequence[Card], listed: Sequence[Card], number: Number) -> str:
    """Of each card the number that is its alone."""
    every = [number(card) for card in listed]
    found = [number(card) for card in cards]
    for card, one in zip(cards, found):
        if one is None or every.count(one) > 1:
            raise NotGiven(f"which number card {card.gpu.uuid} has for its vendor's programs is not known")
    return ",".join(str(one) for one in found)
