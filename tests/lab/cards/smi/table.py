"""The plain table, ``-L`` and ``--version``."""

from __future__ import annotations

import time

from state import Card, Failure, State, lost, reading

WIDE = "+" + "-" * 89 + "+"
COLUMNS = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
MIG_COLUMNS = "+" + "-" * 18 + "+" + "-" * 34 + "+" + "-" * 11 + "+" + "-" * 23 + "+"


def print_table(state: State, cards: list[Card]) -> int:
    """Header, one block a card, MIG devices when there are any, processes."""
    for card in cards:
        if message := lost(card):
            raise Failure(*message)
    driver, cuda = state.tree["driver_version"], state.tree["cuda_version"]
    print(time.strftime("%a %b %e %H:%M:%S %Y") + "       ")
    print(WIDE)
    print(f"| {f'NVIDIA-SMI {driver}':<35}{f'Driver Version: {driver}':<31}{f'CUDA Version: {cuda}':<21} |")
    print("|" + COLUMNS[1:-1] + "|")
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print("|" + COLUMNS[1:-1].replace("-", "=") + "|")
    for card in cards:
        _print_card(state, card)
        print(COLUMNS)
    _print_mig_devices(cards)
    _print_processes(cards)
    return 0


def print_list(cards: list[Card]) -> int:
    """``-L``: a lost card's line is its message, the others are still listed."""
    for card in cards:
        if message := lost(card):
            print(message[0])
            continue
        print(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})")
        for number, one in enumerate(mig_devices(card)):
            print(f"  MIG {one['profile']:<12}Device {number:>2}: (UUID: {one['uuid']})")
    return 0


def print_versions(state: State) -> int:
    driver = state.tree["driver_version"]
    print(f"NVIDIA-SMI version  : {driver}")
    print(f"NVML version        : {'.'.join(driver.split('.')[:2])}")
    print(f"DRIVER version      : {driver}")
    print(f"CUDA Version        : {state.tree['cuda_version']}")
    return 0


def mig_devices(card: Card) -> list[Card]:
    """Instances that hold a compute instance, while the mode is on."""
    on = card.get("mig_mode") == "Enabled"
    return [one for one in card.get("mig_instances", []) if one.get("uuid")] if on else []


def _cell(state: State, card: Card, call: str, key: str, form: str) -> str:
    value, code = reading(state, card, call, key)
    if code == 3:
        return "N/A"
    return "ERR!" if code else form.format(value)


def _print_card(state: State, card: Card) -> None:
    mode, pending = card.get("mig_mode"), card.get("mig_pending")
    on = mode == "Enabled"
    name = _cell(state, card, "nvmlDeviceGetName", "name", "{}")
    name = name if len(name) <= 27 else name[:24] + "..."
    ecc = "On" if on else _cell(state, card, "nvmlDeviceGetTotalEccErrors", "ecc_uncorrected", "{}")
    print(f"|{card['index']:>4}  {name:<28}{'On':>5}  |{card['pci_bus_id']:>19} Off |{ecc:>21} |")
    temperature = _cell(state, card, "nvmlDeviceGetTemperature", "temperature_c", "{}C")
    power = _cell(state, card, "nvmlDeviceGetPowerUsage", "power_w", "{:.0f}W")
    limit = _cell(state, card, "nvmlDeviceGetEnforcedPowerLimit", "power_limit_w", "{:.0f}W")
    used = _cell(state, card, "nvmlDeviceGetMemoryInfo", "memory_used_mib", "{}MiB")
    total = _cell(state, card, "nvmlDeviceGetMemoryInfo", "memory_total_mib", "{}MiB")
    load = "N/A" if on else _cell(state, card, "nvmlDeviceGetUtilizationRates", "utilization_pct", "{}%")
    print(f"| N/A{temperature:>6}    P0{power:>16} / {limit:>5} |{used:>11} / {total:>9} |{load:>8}{'Default':>13} |")
    shown = "N/A" if mode is None else mode + ("*" if pending and pending != mode else "")
    print(f"|{'':41}|{'':24}|{shown:>21} |")


def _print_mig_devices(cards: list[Card]) -> None:
    rows = [(card, number, one) for card in cards for number, one in enumerate(mig_devices(card))]
    if not rows:
        return
    print("\n" + WIDE)
    print(f"| {'MIG devices:':<88}|")
    print(MIG_COLUMNS)
    print("| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |")
    print("|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |")
    print("|                  |                                  |        ECC|                       |")
    print("|==================+==================================+===========+=======================|")
    for card, number, one in rows:
        ids = f"{card['index']:>3} {one['gi_id']:>4} {one['ci_id']:>3} {number:>3}"
        memory = f"{one['memory_used_mib']}MiB / {one['memory_total_mib']}MiB"
        print(f"|{ids:<18}|{memory:>30}    |{one['sms']:>3}      0 |  1   0    1    0    1 |")
        print(f"|{'':18}|{'0MiB / 6184MiB':>30}    |           |                       |")
        print(MIG_COLUMNS)


def _print_processes(cards: list[Card]) -> None:
    print("\n" + WIDE)
    print(f"| {'Processes:':<88}|")
    print(f"| {' GPU   GI   CI              PID   Type   Process name                        GPU Memory':<88}|")
    print(f"| {'       ID   ID                                                               Usage':<88}|")
    print("|" + "=" * 89 + "|")
    rows = [(card, process) for card in cards for process in card.get("processes", [])]
    for card, process in rows:
        gi, ci = process.get("gi_id", "N/A"), process.get("ci_id", "N/A")
        memory = "N/A" if process.get("memory_mib") is None else f"{process['memory_mib']}MiB"
        name = process.get("name", "")
        name = name if len(name) <= 36 else "..." + name[-33:]
        line = f"{card['index']:>5} {gi:>4} {ci:>4} {process['pid']:>16} {process.get('type', 'C'):>6}"
        print(f"|{line + f'   {name:<36}{memory:>10}':<89}|")
    if not rows:
        print(f"|  {'No running processes found':<87}|")
    print(WIDE)
