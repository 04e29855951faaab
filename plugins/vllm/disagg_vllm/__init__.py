"""The vLLM plugins of disagg-run."""
