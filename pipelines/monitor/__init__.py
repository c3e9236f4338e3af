"""Rules over a run's metrics, one a file; what they see is in `pipelines.contract.monitor`."""
