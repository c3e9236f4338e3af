"""Configurations of other trainers, read into recipes: TRL, open-r1, verl and axolotl. One table for each says which field becomes what."""
