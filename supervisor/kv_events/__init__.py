"""KV events: what a server holds of which texts, published for routers in the form that vLLM's publisher has."""
