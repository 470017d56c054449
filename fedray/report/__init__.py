"""The report: one page of pictures and tables, made from run directories."""

from fedray.report.page import write_report

__all__ = ["write_report"]
