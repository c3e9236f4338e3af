"""Taking a model away: the model of a run by its name, its card, a folder that anybody can load, a repository on a hub."""
