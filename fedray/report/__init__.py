"""Makes the report, one page of pictures and tables, from run directories (`page.write_report`)."""
