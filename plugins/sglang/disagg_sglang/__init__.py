"""The SGLang plugins of disagg-run."""
