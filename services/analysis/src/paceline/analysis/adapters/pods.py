"""Pods that never run, as settings `pod_not_started` (`POD STATUS`), from `kubectl get pods` and events."""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SettingSeen

_ROW = re.compile(
    r"^\s{0,8}(?:[a-z0-9][a-z0-9.-]{0,62}\s{1,40})?(?P<pod>[a-z0-9][a-z0-9./-]{1,120})\s{1,40}0/\d{1,3}\s{1,40}"
    r"(?P<status>(?:Init:)?(?:ImagePullBackOff|ErrImagePull|CrashLoopBackOff|Pending|ContainerCreating"
    r"|CreateContainer\w{0,20}|RunContainerError|InvalidImageName|Error|\d{1,3}/\d{1,3})|SchedulingGated)\b"
)
_EVENT = re.compile(
    r"\b(?P<status>FailedScheduling|FailedMount|FailedAttachVolume|FailedCreatePodSandBox)\s{1,40}"
    r"pod/(?P<pod>[a-z0-9][a-z0-9./-]{1,120})"
)


class PodStates:
    """Rows of pods whose containers are not ready, and events that say why."""

    name = "pods"
    needles = (" 0/", "FailedScheduling", "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _ROW.match(text) or _EVENT.search(text):
            value = f"{found['pod']} {found['status']}"
            yield SettingSeen(**base_of(block), name="pod_not_started", value=value, text=text.strip()[:300])
