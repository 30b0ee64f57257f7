"""What can go wrong with a page, typed.

OSError
  PageUnavailableError   the writer could not create its page; observe nothing and go on
ValueError
  PageError              a descriptor or its content is not a page; the reader refuses it
  MessageError           bytes of the agent socket that are no message
"""


class PageUnavailableError(OSError):
    """The kernel refused a page (memfd_create, memory, threads); training goes on unobserved."""


class PageError(ValueError):
    """Something that is not a probe page, by field, value and what was expected."""

    def __init__(self, field: str, value: object, expected: object) -> None:
        super().__init__(f"{field} is {value}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class MessageError(ValueError):
    """Bytes of the agent socket that are no message, by field, value and what was expected."""

    def __init__(self, field: str, value: object, expected: object) -> None:
        text = repr(value)
        super().__init__(f"{field} is {text[:80]}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected
