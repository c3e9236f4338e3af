"""The recipe: its fields, how it is read, and what is checked before anything runs."""
