"""The HTTP server, delays and faults of a stand-in; what is an engine's own comes from its plugin."""
