"""luce.supervisor.http: the OpenAI and Anthropic APIs over a Supervisor, as an aiohttp application."""
