"""``nvidia-smi mig``: instances are kept in the state file, so the library shows them, too."""

from __future__ import annotations

import uuid

from state import Card, Failure, State

# The first id of instances of a size, as real drivers number them: ids are names, not ordinals.
FIRST_ID = {8: 0, 4: 1, 2: 3, 1: 7}


def set_mode(state: State, cards: list[Card], wanted: str) -> int:
    """``-mig 0|1``: pending only while something runs on the card; says "All done." either way."""
    mode = {"0": "Disabled", "1": "Enabled"}.get(wanted)
    if mode is None:
        raise Failure(f"Invalid argument: {wanted}", 2)
    for card in cards:
        if card.get("mig_mode") is None:
            raise Failure(f"Unable to set MIG mode for GPU {card['pci_bus_id']}: Not Supported", 3)
        if card.get("processes") and mode != card["mig_mode"]:
            state.change(card["index"], mig_pending=mode)
            verb = "enable" if mode == "Enabled" else "disable"
            print(f"Warning: MIG mode is in pending {verb} state for GPU {card['pci_bus_id']}:In use by another client")
            print(f"{card['pci_bus_id']} is currently being used by one or more other processes.")
            continue
        left = card["mig_instances"] if mode == card["mig_mode"] else []
        state.change(card["index"], mig_mode=mode, mig_pending=mode, mig_instances=left)
        print(f"{mode} MIG Mode for GPU {card['pci_bus_id']}")
    print("All done.")
    return 0


def main(state: State, words: list[str]) -> int:
    options = _options(words)
    cards = [card for card in state.select(options.get("-i")) if card.get("mig_mode") == "Enabled"]
    if not cards:
        raise Failure("No MIG-enabled devices found.", 6)
    if "-lgip" in options:
        return _list_profiles(cards)
    if "-lgi" in options or "-lci" in options:
        return _list_instances(cards, compute="-lci" in options)
    if "-cgi" in options:
        for card in cards:
            _create(state, card, options["-cgi"].split(","), compute="-C" in options)
        return 0
    if "-dci" in options or "-dgi" in options:
        return _destroy(state, cards, options)
    raise Failure("hf-lab: mig knows -lgip, -lgi, -lci, -cgi, -dci and -dgi", 2)


def _options(words: list[str]) -> dict[str, str]:
    options, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        takes_value = word in ("-i", "-gi", "-ci", "-cgi")
        options[word] = rest.pop(0) if takes_value and rest else "yes"
    return options


def _list_profiles(cards: list[Card]) -> int:
    line = "+" + "-" * 78 + "+"
    print(line)
    print(f"| {'GPU instance profiles:':<77}|")
    print(f"| {'GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC':<77}|")
    print(f"| {'                               Free/Total   GiB              CE    JPEG  OFA':<77}|")
    print("|" + "=" * 78 + "|")
    for card in cards:
        for profile in card["mig_profiles"]:
            free = len(_free_starts(card, profile))
            counts, memory = f"{free}/{len(profile['starts'])}", f"{profile['memory_mib'] / 1024:.2f}"
            name = f"MIG {profile['name']}"
            row = f"{card['index']:>4}  {name:<17}{profile['id']:>4}   {counts:>6}       {memory:>6}     No"
            row += f"{profile['sms']:>7}     1     0"
            print(f"|{row:<78}|")
            print(f"|{' ' * 56 + '1     1     0':<78}|")
            print(line)
    return 0


def _list_instances(cards: list[Card], compute: bool) -> int:
    found = [(card, one) for card in cards for one in card["mig_instances"] if not compute or one.get("uuid")]
    what = "compute" if compute else "GPU"
    if not found:
        raise Failure(f"No {what} instances found: Not Found", 6)
    line = "+" + "-" * 57 + "+"
    print(line)
    print(f"| {f'{what[0].upper()}{what[1:]} instances:':<56}|")
    if compute:
        print(f"| {'GPU     GPU       Name             Profile   Instance':<56}|")
        print(f"| {'      Instance                       ID        ID':<56}|")
    else:
        print(f"| {'GPU   Name               Profile  Instance   Placement':<56}|")
        print(f"| {'                           ID       ID       Start:Size':<56}|")
    print("|" + "=" * 57 + "|")
    for card, one in found:
        name = f"MIG {one['profile']}"
        if compute:
            row = f"{card['index']:>4}{one['gi_id']:>8}       {name:<17}{one['ci_profile_id']:>6}{one['ci_id']:>10}"
        else:
            row = f"{card['index']:>4}  {name:<19}{one['profile_id']:>4}{one['gi_id']:>9}"
            row += f"     {one['start']:>6}:{one['size']}"
        print(f"|{row:<57}|")
        print(line)
    return 0


def _free_starts(card: Card, profile: Card) -> list[int]:
    taken = {slot for one in card["mig_instances"] for slot in range(one["start"], one["start"] + one["size"])}
    return [s for s in profile["starts"] if not taken & set(range(s, s + profile["size"]))]


def _create(state: State, card: Card, names: list[str], compute: bool) -> None:
    """One after the other; what was made before a failure stays, as on a real card."""
    limit = state.tree.get("smi", {}).get("mig_fail_after")
    index = card["index"]
    for number, name in enumerate(names):
        known = [p for p in card["mig_profiles"] if name in (p["name"], str(p["id"]))]
        if not known:
            raise Failure(
                f"Unable to parse GPU instance profile {name}: Not Found\nFailed to create GPU instances: Not Found", 6
            )
        profile = known[0]
        starts = _free_starts(card, profile)
        if not starts or (limit is not None and number >= limit):
            raise Failure(
                f"Unable to create a GPU instance on GPU {index:>2} using profile {profile['id']}: "
                "Insufficient Resources\nFailed to create GPU instances: Insufficient Resources", 19
            )  # fmt: skip
        used = {one["gi_id"] for one in card["mig_instances"]}
        gi_id = next(n for n in range(FIRST_ID[profile["size"]], 100) if n not in used)
        one = {
            "gi_id": gi_id, "ci_id": 0 if compute else None, "profile": profile["name"], "profile_id": profile["id"],
            "ci_profile_id": profile["ci_id"], "start": starts[-1], "size": profile["size"], "sms": profile["sms"],
            "memory_total_mib": profile["memory_mib"], "memory_used_mib": 9,
            "uuid": f"MIG-{uuid.uuid4()}" if compute else None,
        }  # fmt: skip
        state.change(index, mig_instances=[*card["mig_instances"], one])
        shown = f"MIG {profile['name']} (ID {profile['id']:>2})"
        print(f"Successfully created GPU instance ID {gi_id:>2} on GPU {index:>2} using profile {shown}")
        if compute:
            shown = f"MIG {profile['name']} (ID {profile['ci_id']:>2})"
            print(
                f"Successfully created compute instance ID  0 on GPU {index:>2} GPU instance ID {gi_id:>2} "
                f"using profile {shown}"
            )


def _destroy(state: State, cards: list[Card], options: dict[str, str]) -> int:
    """``-dci`` and ``-dgi``, of one instance or of all; an instance in use stays."""
    compute, wanted = "-dci" in options, options.get("-gi")
    done = 0
    for card in cards:
        for one in list(card["mig_instances"]):
            if wanted is not None and str(one["gi_id"]) not in wanted.split(","):
                continue
            if compute and not one.get("uuid"):
                continue
            where = f"from GPU {card['index']:>2}"
            what = f"compute instance ID {one['ci_id']:>2} {where} GPU" if compute else "GPU"
            busy = any(process.get("gi_id") == one["gi_id"] for process in card.get("processes", []))
            tail = "" if compute else f" {where}"
            if busy or (not compute and one.get("uuid")):
                raise Failure(
                    f"Unable to destroy {what} instance ID {one['gi_id']:>2}{tail}: In use by another client\n"
                    f"Failed to destroy {'compute' if compute else 'GPU'} instances: In use by another client", 19
                )  # fmt: skip
            rest = [other for other in card["mig_instances"] if other is not one]
            if compute:
                rest = [{**o, "uuid": None, "ci_id": None} if o is one else o for o in card["mig_instances"]]
            state.change(card["index"], mig_instances=rest)
            print(f"Successfully destroyed {what} instance ID {one['gi_id']:>2}{tail}")
            done += 1
    if not done:
        raise Failure(f"No {'compute' if compute else 'GPU'} instances found: Not Found", 6)
    return 0
