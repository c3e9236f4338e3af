"""The process of a stage whose kind a plug-in brings."""
