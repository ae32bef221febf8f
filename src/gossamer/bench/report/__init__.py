"""The report of an experiment: one self-contained page that opens offline."""

from ._page import write_report

__all__ = ["write_report"]
