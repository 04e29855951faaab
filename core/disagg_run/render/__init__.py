"""A plan as table, JSON, YAML or shell."""
