"""The kernel's log of AMD GPUs (amdgpu, kfd) and of PCIe errors (AER), and what ROCm's runtime prints.

A reset is what follows: of GPUs that share a hive all are reset, and only one has failed. Page faults are the
program's, as Xid 31 is.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import DeviceEvent, Fact, ProcessFault, ProcessFaultKind

BY_PORT = "PCIe error, as its port says"  # of a GPU only where the job has one at that address
_ADDRESS = r"(?P<pci>[\da-fA-F]{4}:[\da-fA-F]{2}:[\da-fA-F]{2}\.[\da-fA-F])"
_AMD = re.compile(r"\bamdgpu " + _ADDRESS + r": (?:amdgpu: )?(?P<text>.{1,1000})")
_CAUSES = (
    ("uncorrectable hardware error", re.compile(
        r"uncorrectable hardware errors?\b(?!.{0,20}\b(?:count|total))|poison is (?:consumed|created)|"
        r"(?:xgmi|wafl).{0,40}uncorrect", re.IGNORECASE)),
    ("lost from the bus", re.compile(r"device lost from bus|SMU: response:0xFFFFFFFF|"
        r"GPU (?:has )?fallen off")),
    ("reset failed", re.compile(r"GPU reset (?:end )?(?:with ret = -\d+|failed)|[Rr]eset failed|"
        r"GPU Recovery Failed", re.IGNORECASE)),
    ("queue cannot be preempted", re.compile(r"unsuccessful queues? preemption|"
        r"qcm fence wait loop timeout|[Ff]ailed to evict (?:process )?queues?|MES failed to")),
    ("ring timeout", re.compile(r"\bring \S{1,40} timeout")),
)  # fmt: skip
_PAGE_FAULT = re.compile(r"page fault \(|GPU fault detected|VM_L2_PROTECTION_FAULT_STATUS")
_RESET = re.compile(r"GPU reset begin|MODE[123] reset|GPU (?:reset|recovery) \(?\d*\)? ?succe", re.IGNORECASE)
_RAS_NONE = re.compile(r"(?:^|[\s,])0 (?:new )?uncorrectable")
_AER = re.compile(
    r"\b(?P<driver>nvidia|amdgpu)(?: PCI)? " + _ADDRESS + r": (?:AER: )?PCIe Bus Error: severity="
    r"Uncorrect(?:ed|able) \((?P<what>[\w-]+)\)"
)
_AER_PORT = re.compile(
    r"\bpcieport .{10,40}AER: (?:Multiple )?Uncorrect(?:ed|able) \((?:Fatal|Non-Fatal)\) error (?:message )?"
    r"received: (?:from )?" + _ADDRESS
)
_HANG = re.compile(r"HW Exception by GPU node-(?P<node>\d{1,4})\b.{0,120}reason ?: ?(?P<why>.{1,80})")
_ACCESS = re.compile(r"Memory access fault by GPU node-\d{1,4}\b")


class AmdEvents:
    """Events of amdgpu, fatal PCIe errors of a GPU, and ROCm's own words in a process's log."""

    name = "kernel amdgpu"
    needles = ("amdgpu", "PCIe Bus Error", "AER: ", "HW Exception by GPU", "Memory access fault by GPU")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _AER.search(text):
            yield self._event(block, found["pci"], f"PCIe error ({found['what'].lower()})", text)
        elif found := _AER_PORT.search(text):
            yield self._event(block, found["pci"], BY_PORT, text)
        elif found := _AMD.search(text):
            words = found["text"]
            for label, pattern in _CAUSES:
                if pattern.search(words) and not _RAS_NONE.search(words):
                    yield self._event(block, found["pci"], label, words)
                    return
            if _PAGE_FAULT.search(words):
                yield self._event(block, found["pci"], "page fault", words, of_application=True)
            elif _RESET.search(words):
                yield self._event(block, found["pci"], "reset", words, follows=True)
        elif found := _HANG.search(text):
            yield ProcessFault(**base_of(block), kind=ProcessFaultKind.CUDA_OTHER, text=found[0][:500])
        elif _ACCESS.search(text):
            yield ProcessFault(**base_of(block), kind=ProcessFaultKind.CUDA_ILLEGAL, text=text.strip()[:500])

    def _event(
        self,
        block: Block,
        pci: str,
        label: str,
        text: str,
        follows: bool = False,
        of_application: bool = False,
    ) -> Fact:
        speaker = replace(block.line.speaker, gpu=normal_pci(pci), rank=None)
        return DeviceEvent(
            **base_of(block, speaker),
            code=0,
            label=label,
            follows=follows,
            of_application=of_application,
            text=text.strip()[:500],
        )
