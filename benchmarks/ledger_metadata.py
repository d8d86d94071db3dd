"""Metadata of ledgers as a BookKeeper client writes it, for benchmarks and tests."""

from __future__ import annotations

from bookwarden.wire.ledger_metadata import encode_ledger_metadata as encode_ledger_metadata
