"""The report of a scan as one HTML page, without scripts or external files, so that it can be mailed and archived."""

from bookwarden.orphans.report.page import render_page

__all__ = ["render_page"]
