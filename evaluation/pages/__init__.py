"""Self-contained HTML pages: inline SVG and CSS, no script, nothing loaded from anywhere, every text escaped."""
