#!/usr/bin/env bash
# Codex against `luce serve`. A person's settings: the same provider in ~/.codex/config.toml.
. "$(dirname "$0")/session.sh"
need_client @openai/codex 0.169.0 codex
begin
export CODEX_HOME=$HOME/.codex LUCE_API_KEY=${LUCE_API_KEY:-dummy}
mkdir -p "$CODEX_HOME"
cat >"$CODEX_HOME/config.toml" <<TOML
model = "luce"
model_provider = "luce"

[model_providers.luce]
name = "luce"
base_url = "$URL/v1"
wire_api = "responses"
env_key = "LUCE_API_KEY"
TOML
turn first_turn "$CLIENT" exec --json --skip-git-repo-check "$FIRST_MESSAGE"
turn second_turn "$CLIENT" exec --json --skip-git-repo-check resume --last "$SECOND_MESSAGE"
turn second_session "$CLIENT" exec --json --skip-git-repo-check "$OTHER_FIRST_MESSAGE"
verdict
