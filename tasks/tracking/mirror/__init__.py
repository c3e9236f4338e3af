"""The mirror of a stage in other trackers: what it is fed from, the clients, and the process that sends."""
