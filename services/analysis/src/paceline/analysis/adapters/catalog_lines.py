"""Adapters that read lines, in the order of asking."""

from paceline.analysis.adapters.asked_to_end import AskedToEnd
from paceline.analysis.adapters.dcgm_metrics import DcgmMetrics
from paceline.analysis.adapters.environment import Environments
from paceline.analysis.adapters.flight_text import FlightAnalyses
from paceline.analysis.adapters.gloo import GlooFailures
from paceline.analysis.adapters.horovod import HorovodStalls
from paceline.analysis.adapters.host_counters import PortCounters
from paceline.analysis.adapters.host_fabric import NetworkPorts, PciSwitches
from paceline.analysis.adapters.host_gpu import DeviceQueues, SmiSections
from paceline.analysis.adapters.host_health import BlockedTasks, DeviceHealth
from paceline.analysis.adapters.host_services import FabricServices
from paceline.analysis.adapters.host_tables import BandwidthTables, ProcessTables
from paceline.analysis.adapters.kernel_amd import AmdEvents
from paceline.analysis.adapters.kernel_log import DeviceEvents, HostKills
from paceline.analysis.adapters.kernel_network import KernelPorts
from paceline.analysis.adapters.launchers import (
    CleanEnds,
    KubernetesEnds,
    LauncherStarts,
    ObservedChildren,
    RayEnds,
    ShellEnds,
    SlurmEnds,
    WorldSizes,
)
from paceline.analysis.adapters.links import LinkStates
from paceline.analysis.adapters.lost import LostPeers
from paceline.analysis.adapters.merged_stacks import MergedStacks
from paceline.analysis.adapters.metrics_text import MetricsText
from paceline.analysis.adapters.model import LineAdapter
from paceline.analysis.adapters.nccl_log import NcclCalls, NcclMembers, NcclNetwork, NcclSettings
from paceline.analysis.adapters.nccl_ras import RasText
from paceline.analysis.adapters.nccl_refusals import NcclRefusals
from paceline.analysis.adapters.nccl_setup import NcclSetup
from paceline.analysis.adapters.pair_lines import PairLines
from paceline.analysis.adapters.phases import Phases
from paceline.analysis.adapters.pods import PodStates
from paceline.analysis.adapters.process_errors import ProcessEnds, ProcessFaults
from paceline.analysis.adapters.progress import Progress
from paceline.analysis.adapters.rendezvous import Endpoints, StoreFailures, StoreSetup
from paceline.analysis.adapters.resources import ResourceLimits
from paceline.analysis.adapters.rows import JsonRows
from paceline.analysis.adapters.smi_table import SmiTables
from paceline.analysis.adapters.stacks import Stacks
from paceline.analysis.adapters.step_lines import StepLines
from paceline.analysis.adapters.stragglers import StragglerReports
from paceline.analysis.adapters.tables import DelimitedTables
from paceline.analysis.adapters.torch_reports import (
    Barriers,
    DesyncReports,
    Mismatches,
    ModelMismatches,
)
from paceline.analysis.adapters.torch_watchdog import GroupStatuses, WatchdogsStuck, WatchdogTimeouts

LINES: tuple[LineAdapter, ...] = (
    WatchdogTimeouts(),
    GroupStatuses(),
    WatchdogsStuck(),
    Mismatches(),
    ModelMismatches(),
    FlightAnalyses(),
    HorovodStalls(),
    DesyncReports(),
    Barriers(),
    GlooFailures(),
    NcclMembers(),
    NcclCalls(),
    NcclNetwork(),
    NcclSettings(),
    NcclSetup(),
    NcclRefusals(),
    RasText(),
    DeviceEvents(),
    AmdEvents(),
    KernelPorts(),
    FabricServices(),
    HostKills(),
    ProcessFaults(),
    ProcessEnds(),
    SlurmEnds(),
    KubernetesEnds(),
    RayEnds(),
    LostPeers(),
    AskedToEnd(),
    PodStates(),
    Environments(),
    LinkStates(),
    ResourceLimits(),
    CleanEnds(),
    LauncherStarts(),
    ShellEnds(),
    ObservedChildren(),
    WorldSizes(),
    Endpoints(),
    StoreFailures(),
    StoreSetup(),
    Stacks(),
    MergedStacks(),
    SmiSections(),
    SmiTables(),
    DeviceHealth(),
    BlockedTasks(),
    DcgmMetrics(),
    PortCounters(),
    DeviceQueues(),
    PciSwitches(),
    NetworkPorts(),
    BandwidthTables(),
    ProcessTables(),
    JsonRows(),
    DelimitedTables(),
    MetricsText(),
    PairLines(),
    StragglerReports(),
    StepLines(),
    Progress(),
    Phases(),
)
