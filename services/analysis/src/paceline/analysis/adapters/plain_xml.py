"""XML as machines write it: elements with attributes, no text. Whatever else XML can do is refused.

No document type means no entities, neither external ones nor such that grow; nothing is ever fetched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

ATTRIBUTES_MAX = 32
VALUE_CHARS_MAX = 1024


class XmlError(ValueError):
    """Not XML, or more of it than is read here."""


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)

    def number(self, name: str, base: int = 10) -> int:
        """An attribute as an integer; XmlError where it is none or missing."""
        text = self.attributes.get(name, "")
        try:
            return int(text, base)
        except ValueError:
            raise XmlError(f"<{self.name}> has {name}={text[:40]!r}, expected a number") from None

    def all(self, name: str) -> Iterator["Element"]:
        """Every element of that name at any depth below, in order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.all(name)


class _Builder:
    def __init__(self, elements_max: int, depth_max: int) -> None:
        self._left = elements_max
        self._depth_max = depth_max
        self._open: list[Element] = []
        self.root: Element | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._left -= 1
        if self._left < 0 or len(self._open) >= self._depth_max:
            raise XmlError("more elements than such a file has, or deeper ones")
        if len(attributes) > ATTRIBUTES_MAX or any(
            len(text) > VALUE_CHARS_MAX for text in attributes.values()
        ):
            raise XmlError(f"<{name[:40]}> has too many or too long attributes")
        element = Element(name, attributes)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, text: str) -> None:
        if not text.isspace():
            raise XmlError(f"text {text[:40]!r}, expected elements only")

    def refuse(self, *_: object) -> None:
        raise XmlError("a document type, an entity or an instruction; expected elements only")


def read_xml(data: bytes, *, elements_max: int, depth_max: int = 32) -> Element:
    """The root element. XmlError for all that is not plain, and for what is larger than the bounds; how large
    `data` is its reader bounds."""
    builder = _Builder(elements_max, depth_max)
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.ProcessingInstructionHandler = builder.refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise XmlError(f"not XML: {error}") from None
    if builder.root is None:
        raise XmlError("no element")
    return builder.root
