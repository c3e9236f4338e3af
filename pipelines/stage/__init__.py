"""What a stage process is made of: its job, its files, its report."""
