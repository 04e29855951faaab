"""Declarative source patches: match, apply, verify, revert."""
