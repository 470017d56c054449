"""The report: one page of pictures and tables, made from run directories."""

from fedray.report.write import write_report

__all__ = ["write_report"]
