#!/usr/bin/env bash
# pi against `luce serve`. A person's settings: the same provider in ~/.pi/agent/models.json. pi asks nobody before it
# runs a tool, so the model gets those that only read.
. "$(dirname "$0")/session.sh"
need_client @mariozechner/pi-coding-agent 0.73.1 pi
begin
mkdir -p "$HOME/.pi/agent"
cat >"$HOME/.pi/agent/models.json" <<JSON
{
  "providers": {
    "luce": {
      "baseUrl": "$URL/v1",
      "api": "openai-completions",
      "apiKey": "${LUCE_API_KEY:-dummy}",
      "models": [
        {
          "id": "luce", "name": "luce", "reasoning": false, "input": ["text"], "contextWindow": 65536,
          "maxTokens": $TOKENS, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        }
      ]
    }
  }
}
JSON
export PI_OFFLINE=1 PI_TELEMETRY=0
pi() { turn "$1" "$CLIENT" --provider luce --model luce --tools read,grep,find,ls --mode json --print "${@:2}"; }
pi first_turn "$FIRST_MESSAGE"
pi second_turn --continue "$SECOND_MESSAGE"
pi second_session "$OTHER_FIRST_MESSAGE"
verdict
