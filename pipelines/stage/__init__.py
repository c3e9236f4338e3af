"""Parts of a stage process: its job, its files, its report."""
