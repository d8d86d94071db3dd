"""The reference in docs/reference is generated, up to date, and has every command and setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bookwarden.config import Settings
from bookwarden_dev.reference import pages, read_settings, settings_page

CHECKOUT = Path(__file__).parents[2]
PAGES = pages(CHECKOUT)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "make docs"


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_the_settings_have_every_field_with_a_meaning() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| ([^|]*) \| ([^|]*) \| (.*) \|$", PAGES[CHECKOUT / "docs/reference/settings.md"], re.M
    )
    assert set(leaves(Settings)) <= {name for name, *_ in rows}
    assert [name for name, *_, meaning in rows if not meaning] == []


def test_settings_are_read_with_their_comments() -> None:
    example = """pulsar:
  token: null                            # text; better a file,
                                         # or the environment
  trusted_hosts: ["a#b"]
offload:                                 # docs/offload.md
  stores: []                             # where
  # - driver: S3                         # S3 or filesystem
  #   region: ""                         # "": any
  attempts: 5"""
    assert [(one.path, one.value, one.comment) for one in read_settings(example)] == [
        ("pulsar", "", ""),
        ("pulsar.token", "null", "text; better a file, or the environment"),
        ("pulsar.trusted_hosts", '["a#b"]', ""),
        ("offload", "", "docs/offload.md"),
        ("offload.stores", "[]", "where"),
        ("offload.stores.driver", "", "S3 or filesystem"),
        ("offload.stores.region", "", '"": any'),
        ("offload.attempts", "5", ""),
    ]
    assert "| `offload.stores.driver` | `S3`, `aws-s3`, " in settings_page(example)
