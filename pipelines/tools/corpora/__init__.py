"""Corpora that are generated: each file of this folder has a function `passages`. `generated:places` names the file `places.py`."""
