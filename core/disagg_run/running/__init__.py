"""Agents, probes, gates and teardown: a finished plan is run."""
