"""vLLM behind the engine interface. Only these modules import vLLM."""
