"""What a simulation ends with when something happened that must not."""

from __future__ import annotations


class Violation(BaseException):
    """An invariant does not hold; ``kind`` names it, the text says where. The product catches no such thing."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
