"""Launch prefill/decode-disaggregated LLM serving from one plan per rank."""
