"""Where jobs run: in this process, or on Ray. Both give the same bits."""
