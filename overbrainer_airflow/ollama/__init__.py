"""Models in Ollama: through its HTTP API, or its command line on a machine."""
