"""Files as NCCL dumps them, written from what its public sources (2.18 to 2.30) print. One attribute differs:
from 2.30 on GPUs have their rank in the graphs."""

from collections.abc import Sequence

Chains = Sequence[Sequence[int]]


def graphs_xml(
    rings: Chains, trees: Chains | None = None, *, ranked: bool = True, beyond: bool = False,
    crossnic: int = 0, first_gpu: int = 0,
) -> str:  # fmt: skip
    """`rings`, `trees`: ranks of each channel. GPU n, counted from `first_gpu`, has the nth lowest rank."""
    trees = rings if trees is None else trees
    numbers = {
        rank: first_gpu + at for at, rank in enumerate(sorted({rank for one in rings for rank in one}))
    }
    nvls = [[rank] for rank in sorted(numbers)][:1]
    parts = [
        _graph(0, 4, rings, numbers, ranked, beyond, crossnic),
        _graph(1, 1, trees, numbers, ranked, beyond, crossnic),
        _graph(4, 6, [], numbers, ranked, beyond, 0),
        _graph(2, 3, [], numbers, ranked, beyond, 0),
        _graph(3, 5, nvls, numbers, ranked, beyond, 0),
    ]
    return '<graphs version="1">\n' + "".join(parts) + "</graphs>\n"


def _graph(
    id_: int, pattern: int, chains: Chains, numbers: dict[int, int], ranked: bool, beyond: bool, crossnic: int
) -> str:
    kinds = ("NVL", "PIX") if chains else ("LOC", "LOC")
    head = (
        f'  <graph id="{id_}" pattern="{pattern}" crossnic="{crossnic}" nchannels="{len(chains)}" '
        f'speedintra="{20 if chains else 0}" speedinter="{20 if chains else 0}" latencyinter="0" '
        f'typeintra="{kinds[0]}" typeinter="{kinds[1]}" samechannels="0"'
    )
    if not chains:
        return f"{head}/>\n"
    channels = []
    for at, chain in enumerate(chains):
        lines = [
            f'      <gpu dev="{numbers[rank]:#x}"'.replace("0x0", "0")
            + (f' rank="{rank}"' if ranked else "")
            + "/>\n"
            for rank in chain
        ]
        net = f'      <net dev="{at % 2:#x}"/>\n'.replace("0x0", "0") if beyond else ""
        channels.append(f"    <channel>\n{net}{''.join(lines)}{net}    </channel>\n")
    return f"{head}>\n{''.join(channels)}  </graph>\n"


def topology_xml(ranks: Sequence[int], first_gpu: int = 0) -> str:
    """Two sockets with switches, below each a GPU, NVSwitches behind it, and a NIC."""
    sockets = []
    for socket in (0, 1):
        half = len(ranks) // 2
        mine = list(enumerate(ranks))[socket * half : (socket + 1) * half]
        switches = "".join(_switch(f"{socket:02x}:{at:x}f", first_gpu + at, rank) for at, rank in mine)
        sockets.append(
            f'  <cpu host_hash="0x6d4ea7b5c8f1d2e3" numaid="{socket}" affinity="ffffffff,ffffffff" '
            f'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">\n{switches}  </cpu>\n'
        )
    return f'<system version="1">\n{"".join(sockets)}</system>\n'


def _switch(bus: str, gpu: int, rank: int) -> str:
    nvlinks = "".join(
        f'          <nvlink target="0000:0{number}:00.0" count="4" tclass="0x068000"/>\n'
        for number in range(4)
    )
    return (
        f"{_pci(4, bus, 0, '0x060400', '0x1000', '0xc010')}{_pci(6, bus, 1, '0x030200', '0x10de', '0x2330')}"
        f'        <gpu dev="{gpu}" sm="90" rank="{rank}" gdr="1">\n{nvlinks}        </gpu>\n      </pci>\n'
        f"{_pci(6, bus, 2, '0x020700', '0x15b3', '0x1021')}"
        f'        <nic>\n          <net name="mlx5_{gpu}" dev="{gpu}" latency="0" speed="400000" port="1" '
        f'guid="0x946dae0300123456" maxconn="131072" gdr="1"/>\n        </nic>\n      </pci>\n    </pci>\n'
    )


def _pci(indent: int, bus: str, function: int, class_: str, vendor: str, device: str) -> str:
    speed = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    subsystem = f'subsystem_vendor="{vendor}" subsystem_device="0x0041"'
    head = f'<pci busid="0000:{bus}.{function}" class="{class_}" vendor="{vendor}" device="{device}"'
    return f"{' ' * indent}{head} {subsystem} {speed}>\n"
