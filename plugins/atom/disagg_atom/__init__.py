"""The ATOM plugins of disagg-run."""
