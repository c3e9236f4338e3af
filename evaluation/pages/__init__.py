"""Self-contained HTML pages from templates: one stylesheet, one script that its hash lets run, nothing loaded, every text escaped."""
