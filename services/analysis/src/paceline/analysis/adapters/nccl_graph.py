"""NCCL's own dumps: the graphs it found (NCCL_GRAPH_DUMP_FILE) and the machine (NCCL_TOPO_DUMP_FILE), as XML.

A graph lists for each of its channels the GPUs of one machine (of one NVLink domain) in their order, between
two network devices where the communicator goes beyond it. Graph 0 is the ring, 1 the tree. From 2.30 on a
GPU has its rank in the communicator; before, only its number, whose rank the dump of the machine gives. The
communicator is named in neither. NCCL repeats these channels and may use fewer of them.
"""

from dataclasses import dataclass

from paceline.analysis.adapters.plain_xml import Element, XmlError, read_xml
from paceline.analysis.orders import CHANNELS_MAX

RING, TREE = 0, 1
ELEMENTS_MAX = 65_536  # NCCL_GRAPH_XML_MAX_NODES
GPUS_MAX = 1024  # of one channel
RANKS_MAX = 1 << 20
_LOCAL = (1 << 56) - 1  # what stands above names the machine within an NVLink domain


@dataclass(frozen=True)
class Gpu:
    """`number` as the driver counts the GPUs of a machine, below the number of the machine."""

    number: int
    rank: int | None


@dataclass(frozen=True)
class Graph:
    """`channels`: GPUs in order. `beyond`: there are network devices around them."""

    crossnic: int
    beyond: bool
    channels: tuple[tuple[Gpu, ...], ...]


@dataclass(frozen=True)
class GraphDump:
    ring: Graph
    tree: Graph


def read_graphs(data: bytes) -> GraphDump:
    """XmlError names what is no dump of graphs, or half of one."""
    root = read_xml(data, elements_max=ELEMENTS_MAX, depth_max=8)
    if root.name != "graphs" or root.number("version") != 1:
        raise XmlError(f"<{root.name}> of version {root.attributes.get('version')}, expected <graphs> of 1")
    found: dict[int, Element] = {}
    for child in root.children:
        if child.name == "graph" and found.setdefault(child.number("id"), child) is not child:
            raise XmlError(f"two graphs of number {child.number('id')}")
    if RING not in found or TREE not in found:
        raise XmlError("no graph of the ring or of the tree")
    return GraphDump(_graph(found[RING]), _graph(found[TREE]))


def read_topology(data: bytes) -> dict[int, int]:
    """Ranks by the number of their GPU. XmlError where two ranks share one, as with several machines."""
    root = read_xml(data, elements_max=ELEMENTS_MAX)
    if root.name != "system" or root.number("version") != 1:
        raise XmlError(f"<{root.name}> of version {root.attributes.get('version')}, expected <system> of 1")
    ranks: dict[int, int] = {}
    for gpu in root.all("gpu"):
        if "rank" not in gpu.attributes:
            continue  # of no rank of this communicator
        number, rank = gpu.number("dev"), _rank(gpu)
        if ranks.setdefault(number, rank) != rank:
            raise XmlError(f"GPU {number} has two ranks")
    if len(set(ranks.values())) != len(ranks):
        raise XmlError("a rank has two GPUs")
    return ranks


def _graph(element: Element) -> Graph:
    channels = [child for child in element.children if child.name == "channel"]
    if len(channels) != element.number("nchannels") or len(channels) > CHANNELS_MAX:
        raise XmlError(f"graph of {len(channels)} channels says {element.attributes.get('nchannels')!r}")
    orders, beyond = [], set()
    for channel in channels:
        names = [child.name for child in channel.children]
        gpus = tuple(_gpu(child) for child in channel.children if child.name == "gpu")
        inner = names[1:-1] if "net" in names else names
        if not 0 < len(gpus) <= GPUS_MAX or inner != ["gpu"] * len(gpus) or len(set(gpus)) != len(gpus):
            raise XmlError(f"channel of {names[:8]}, expected distinct GPUs, at most between two networks")
        orders.append(gpus)
        beyond.add("net" in names)
    if len(beyond) > 1:
        raise XmlError("channels with networks and without")
    return Graph(element.number("crossnic"), True in beyond, tuple(orders))


def _gpu(element: Element) -> Gpu:
    number = element.number("dev", 16)
    if not 0 <= number < 1 << 64:
        raise XmlError(f"GPU {number}")
    return Gpu(number, _rank(element) if "rank" in element.attributes else None)


def _rank(element: Element) -> int:
    rank = element.number("rank")
    if not 0 <= rank < RANKS_MAX:
        raise XmlError(f"rank {rank}, expected 0 to {RANKS_MAX - 1}")
    return rank


def local_number(gpu: Gpu) -> int:
    """The GPU's number on its own machine."""
    return gpu.number & _LOCAL
