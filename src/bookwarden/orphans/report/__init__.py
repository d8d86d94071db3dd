"""The report of a scan as one HTML page: no scripts, nothing from elsewhere, so that it can be mailed and kept."""

from bookwarden.orphans.report.page import render_page, size_text

__all__ = ["render_page", "size_text"]
