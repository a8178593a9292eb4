"""``topo -m``: what joins two cards, from their lists of links."""

from __future__ import annotations

from state import Card, Failure, State


def main(state: State, words: list[str]) -> int:
    if words != ["-m"]:
        raise Failure("hf-lab: only `topo -m`", 2)
    if not state.cards:
        raise Failure("No devices were found", 6)
    names = [f"GPU{card['index']}" for card in state.cards]
    print("\t" + "\t".join(f"\x1b[4m{name}" for name in names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m")
    for card in state.cards:
        cells = [_joint(card, peer) for peer in state.cards]
        numa = card.get("numa_node")
        print("\t".join([f"GPU{card['index']}", *cells, "0-1", "N/A" if numa is None else str(numa), "", "N/A"]))
    for line in ("", "Legend:", "", "  X    = Self", "  SYS  = across NUMA nodes", "  NODE = within one"):
        print(line)
    print("  NV#  = a bonded set of # NVLinks")
    return 0


def _joint(card: Card, peer: Card) -> str:
    if card is peer:
        return " X "
    links = card.get("nvlinks", []).count(peer["pci_bus_id"])
    if links:
        return f"NV{links}"
    return "NODE" if card.get("numa_node") == peer.get("numa_node") else "SYS"
