"""What is protected: named objects and random numbers, captured as raw tensors and a JSON skeleton."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.trainer.protection.errors import DuplicateName, StateMismatch, UnprotectableState
from paceline.trainer.protection.identity import Part
from paceline.trainer.protection.memory import ALIGN_BYTES, memory_of, pointer_of
from paceline.trainer.protection.skeleton import decode, encode
from paceline.trainer.protection.sources import (
    OptimizerSource,
    RandomSource,
    Section,
    Source,
    is_sharded,
    local,
    source_of,
)

FOOTER_BYTES = 8  # length of the JSON before it, little endian
RANDOM = "random"
VERSION = 1


@dataclass(frozen=True)
class Captured:
    """A tensor of a snapshot and where in its part it goes; `pointer` is its memory where that is plain
    host memory in one piece, else 0."""

    tensor: Any
    part: Part
    offset: int
    bytes: int
    pointer: int

    def cloned(self) -> "Captured":
        tensor = self.tensor.clone()
        return Captured(tensor, self.part, self.offset, self.bytes, pointer_of(tensor))


@dataclass(frozen=True)
class Listed:
    """A section as it was written down: JSON of its tree, JSON of the rows of its tensors, and these.

    Good again while the stamp is the same and the section begins at the same place.
    """

    stamp: object
    start: tuple[int, int, int]
    end: tuple[int, int, int]
    tree: str
    rows: str
    tensors: Sequence[Captured]


class Snapshot:
    """One state, in two moves, so that the training thread pays for as little as possible.

    What may change in forward is copied and written down at once. What only an optimizer writes is
    pending: `complete` lists it, on the copier's thread, before the optimizer is let on. `known` is what
    earlier snapshots of the same objects have written down.
    """

    def __init__(self, known: dict[tuple[str, str], Listed]) -> None:
        self.tensors: list[Captured] = []
        self.ends = {Part.OWN: 0, Part.SHARED: 0}
        self._known = known
        self._trees: dict[str, list[str]] = {}
        self._rows: list[str] = []
        self._count = 0
        self._pending: list[tuple[str, Section]] = []

    def read(self, name: str, section: Section) -> None:
        """Note a section, the tensors of an early one as copies."""
        if section.lazy:
            self._pending.append((name, section))
            return
        self._list(name, section, copied=True)

    def complete(self) -> None:
        """List what is pending; no storage is copied."""
        for name, section in self._pending:
            self._list(name, section.now(), copied=False)
        self._pending = []

    def header(self) -> bytes:
        """The end of the own part: JSON, padded, and its length."""
        tree = ",".join(f"{json.dumps(name)}:{{{','.join(texts)}}}" for name, texts in self._trees.items())
        rows = ",".join(filter(None, self._rows))
        whole = f'{{"version":{VERSION},"tree":{{{tree}}},"tensors":[{rows}],"own":{self.ends[Part.OWN]}}}'
        text = whole.encode()
        text += b" " * (-len(text) % ALIGN_BYTES)
        return text + len(text).to_bytes(FOOTER_BYTES, "little")

    def _list(self, name: str, section: Section, copied: bool) -> None:
        key, start = (name, section.key), self._place()
        listed = self._known.pop(key, None)
        if listed is None or (listed.stamp, listed.start) != (section.stamp, start):
            listed = self._write_down(name, section, start)
        if section.stamp is not None:  # what is listed each time is not kept, nor are its tensors
            self._known[key] = listed
        self._count, self.ends[Part.OWN], self.ends[Part.SHARED] = listed.end
        self.tensors += [one.cloned() for one in listed.tensors] if copied else listed.tensors
        self._trees.setdefault(name, []).append(f"{json.dumps(section.key)}:{listed.tree}")
        self._rows.append(listed.rows)

    def _place(self) -> tuple[int, int, int]:
        return self._count, self.ends[Part.OWN], self.ends[Part.SHARED]

    def _write_down(self, name: str, section: Section, start: tuple[int, int, int]) -> Listed:
        tensors: list[Captured] = []
        rows: list[Any] = []
        seen: dict[Any, int] = {}

        def take(value: Any, path: str) -> int:
            tensor, part = _dense(value, path, section.part)
            key = (part, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            index = seen.get(key, -1)
            if index >= 0 and tensor.numel():  # tied weights
                return index
            offset, length = self.ends[part], tensor.numel() * tensor.element_size()
            self.ends[part] = offset + length + -length % ALIGN_BYTES
            tensors.append(Captured(tensor, part, offset, length, pointer_of(tensor)))
            rows.append([str(tensor.dtype)[6:], list(tensor.shape), part.value, offset])
            self._count += 1
            seen[key] = self._count - 1
            return self._count - 1

        tree = _in_json(encode(section.tree, take, f"{name}.{section.key}"))
        return Listed(section.stamp, start, self._place(), tree, _in_json(rows)[1:-1], tensors)


def _dense(value: Any, path: str, part: Part) -> tuple[Any, Part]:
    """The tensor that this rank holds of `value`, and the part it belongs to; UnprotectableState."""
    import torch

    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise UnprotectableState(f"{path}: only dense tensors with storage can be protected")
    if type(value) is torch.Tensor:
        return value.detach(), part
    return local(value).detach(), Part.OWN if is_sharded(value) else part


def _in_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Protected:
    """The objects of one rank, by name.

    `replicas`: ranks that hold the same parameters, this one included. With 1 there is no healthy
    replica to take parameters from, so they travel with the optimizer shard. `sharded` names objects
    whose tensors are this rank's alone although they do not look like it (experts).
    """

    def __init__(
        self,
        objects: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        replicas: int = 1,
        sharded: Collection[str] = (),
        random_numbers: bool = True,
    ) -> None:
        self.replicas = replicas
        self._sharded = set(sharded)
        self._sources: dict[str, Source] = {}
        self._random = RandomSource() if random_numbers else None
        self.optimizers: list[Any] = []
        self._has_shards = False
        self._known: dict[tuple[str, str], Listed] = {}
        named = list(objects.items() if isinstance(objects, Mapping) else objects)
        for name, thing in sorted(named, key=lambda pair: hasattr(pair[1], "param_groups")):
            self.add(name, thing)
        unknown = self._sharded - self._sources.keys()
        if unknown:
            raise UnprotectableState(f"sharded names no protected object: {sorted(unknown)}")

    def add(self, name: str, thing: Any) -> None:
        """Protect `thing` under `name`; modules before the optimizers of their parameters.

        Raises DuplicateName, and UnprotectableState where its state cannot be written as JSON and tensors.
        """
        if not isinstance(name, str) or not name or name == RANDOM:
            raise DuplicateName(f"a protected object needs a name of its own, not {name!r}")
        if name in self._sources:
            raise DuplicateName(f"{name}: protected twice; give each object its own name")
        shared = self.replicas > 1 and name not in self._sharded
        if callable(getattr(thing, "parameters", None)):
            self._has_shards |= any(map(is_sharded, thing.parameters()))
        source = source_of(name, thing, shared, self._has_shards)
        # The error of a state that does not fit belongs here, not into a step.
        _collect({name: source}, {}).complete()
        self._sources[name] = source
        if callable(getattr(thing, "register_step_pre_hook", None)):
            self.optimizers.append(thing)

    def shared_optimizer_bytes(self) -> int:
        """Of optimizer state that is equal on all replicas, so that a keeper's copy would add nothing."""
        trees = [
            section.now().tree
            for source in self._sources.values()
            if isinstance(source, OptimizerSource)
            for section in source.read()
            if section.part is Part.SHARED
        ]
        values = [value for tree in trees for entry in tree.values() for value in entry.values()]
        return sum(value.numel() * value.element_size() for value in values if hasattr(value, "numel"))

    def capture(self) -> Snapshot:
        """The state as it is now; see `Snapshot` for what is read when."""
        return _collect(self._all(), self._known)

    def load(self, own: Any, shared: Any) -> None:
        """Write a verified copy into the objects: flat uint8 host tensors of the two parts.

        Raises StateMismatch where it is not of these objects. Nothing keeps a reference to the copy.
        """
        header = parse_header(own)
        tensors = [_view(entry, {Part.OWN: own, Part.SHARED: shared}) for entry in header["tensors"]]
        trees = decode(header["tree"], tensors)
        sources = self._all()
        if trees.keys() != sources.keys():
            raise StateMismatch(f"the copy has {sorted(trees)}, protected are {sorted(sources)}")
        for name, source in sources.items():
            try:
                source.write(trees[name])
            except (KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise StateMismatch(f"{name}: {error}") from error

    def _all(self) -> dict[str, Source]:
        return {**self._sources, **({RANDOM: self._random} if self._random is not None else {})}


def _collect(sources: Mapping[str, Source], known: dict[tuple[str, str], Listed]) -> Snapshot:
    snapshot = Snapshot(known)
    for name, source in sources.items():
        for section in source.read():
            snapshot.read(name, section)
    return snapshot


def parse_header(own: Any) -> dict[str, Any]:
    """The JSON at the end of an own part. Raises StateMismatch."""
    total = own.numel()
    memory = memory_of(own)
    length = int.from_bytes(memory[-FOOTER_BYTES:], "little") if total >= FOOTER_BYTES else -1
    if not 0 < length <= total - FOOTER_BYTES:
        raise StateMismatch(f"own part of {total} bytes has no header")
    try:
        value = json.loads(bytes(memory[total - FOOTER_BYTES - length : total - FOOTER_BYTES]))
    except ValueError as error:
        raise StateMismatch(f"own part has a broken header: {error}") from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise StateMismatch(f"own part is not of version {VERSION}")
    if value.get("own") != total - FOOTER_BYTES - length:
        raise StateMismatch(f"own part of {total} bytes is not the one that its header describes")
    if not isinstance(value.get("tree"), dict) or not isinstance(value.get("tensors"), list):
        raise StateMismatch("own part: tree or tensors are missing")
    return value


def _view(entry: Any, parts: Mapping[Part, Any]) -> Any:
    """The tensor that `[dtype, shape, part, offset]` describes, as a view of its part."""
    import torch

    try:
        name, shape, part, offset = entry
        dtype = getattr(torch, name)
        count = 1
        for size in shape:
            count *= size
        length = count * torch.empty(0, dtype=dtype).element_size()
        held = parts[Part(part)]
        if type(offset) is not int or offset < 0 or offset % ALIGN_BYTES or offset + length > held.numel():
            raise ValueError(f"{length} bytes at {offset} are outside the part's {held.numel()}")
        return held[offset : offset + length].view(dtype).view(shape)
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise StateMismatch(f"tensor {str(entry)[:80]}: {error}") from error
