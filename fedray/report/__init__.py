"""The report: one page of pictures and tables, made from run directories (`page.write_report`)."""
