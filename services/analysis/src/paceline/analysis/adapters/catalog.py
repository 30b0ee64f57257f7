"""All adapters, in the order of asking. A new tool is one module and one line here."""

from paceline.analysis.adapters.collected import CollectedProcesses
from paceline.analysis.adapters.flight_json import FlightJson
from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.gloo import GlooFailures
from paceline.analysis.adapters.host_fabric import NetworkPorts, PciSwitches
from paceline.analysis.adapters.host_gpu import DeviceQueues, SmiSections
from paceline.analysis.adapters.host_tables import BandwidthTables, ProcessTables
from paceline.analysis.adapters.incident import IncidentBundles, IncidentParts, LiveEvidences
from paceline.analysis.adapters.json_documents import JsonDocuments
from paceline.analysis.adapters.kernel_log import DeviceEvents, HostKills
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
from paceline.analysis.adapters.nccl_log import NcclCalls, NcclMembers, NcclNetwork, NcclSettings
from paceline.analysis.adapters.nccl_profiles import NcclProfiles
from paceline.analysis.adapters.nccl_ras import RasText
from paceline.analysis.adapters.nccl_ras_json import RasJson
from paceline.analysis.adapters.nccl_setup import NcclSetup
from paceline.analysis.adapters.phases import Phases
from paceline.analysis.adapters.process_errors import ProcessEnds, ProcessFaults
from paceline.analysis.adapters.progress import Progress
from paceline.analysis.adapters.reading import Adapters
from paceline.analysis.adapters.rendezvous import Endpoints, StoreFailures
from paceline.analysis.adapters.rows import JsonRows
from paceline.analysis.adapters.stacks import Stacks
from paceline.analysis.adapters.torch_reports import (
    Barriers,
    DesyncReports,
    Mismatches,
    ModelMismatches,
    StalledTensors,
)
from paceline.analysis.adapters.torch_watchdog import GroupStatuses, WatchdogsStuck, WatchdogTimeouts

ADAPTERS = Adapters(
    documents=(
        IncidentBundles(),
        IncidentParts(),
        LiveEvidences(),
        CollectedProcesses(),
        FlightPickles(),
        FlightJson(),
        RasJson(),
        NcclProfiles(),
        JsonDocuments(),  # last of all: every other JSON document is asked for first
    ),
    lines=(
        WatchdogTimeouts(),
        GroupStatuses(),
        WatchdogsStuck(),
        Mismatches(),
        ModelMismatches(),
        StalledTensors(),
        DesyncReports(),
        Barriers(),
        GlooFailures(),
        NcclMembers(),
        NcclCalls(),
        NcclNetwork(),
        NcclSettings(),
        NcclSetup(),
        RasText(),
        DeviceEvents(),
        HostKills(),
        ProcessFaults(),
        ProcessEnds(),
        SlurmEnds(),
        KubernetesEnds(),
        RayEnds(),
        CleanEnds(),
        LauncherStarts(),
        ShellEnds(),
        ObservedChildren(),
        WorldSizes(),
        Endpoints(),
        StoreFailures(),
        Stacks(),
        SmiSections(),
        DeviceQueues(),
        PciSwitches(),
        NetworkPorts(),
        BandwidthTables(),
        ProcessTables(),
        JsonRows(),
        Progress(),
        Phases(),
    ),
)
