"""The report of runs: one self-contained page that opens offline."""

from ._page import write_page, write_report
from ._subject import Subject

__all__ = ["Subject", "write_page", "write_report"]
