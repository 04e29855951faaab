"""The toy engine's plugin for disagg-run."""
