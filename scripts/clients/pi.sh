#!/usr/bin/env bash
# pi against `luce serve`. A person's settings: the same provider in ~/.pi/agent/models.json. pi asks nobody before it
# runs a tool, so the model gets those that only read, but for the task.
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
          "id": "luce", "name": "luce", "reasoning": true, "input": ["text"], "contextWindow": 65536,
          "maxTokens": $TOKENS, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        }
      ]
    }
  }
}
JSON
export PI_OFFLINE=1 PI_TELEMETRY=0
MAY=$([ "$SCENARIO" = task ] && echo read,write,edit,bash || echo read,grep,find,ls)
PI=("$CLIENT" --provider luce --model luce --tools "$MAY")
pi() { turn "$1" "${PI[@]}" --mode json --print "${@:2}"; }

turns() {
    pi first_turn "$FIRST_MESSAGE"
    pi second_turn --continue "$SECOND_MESSAGE"
    pi second_session "$OTHER_FIRST_MESSAGE"
    verdict
}

task() {
    printf '{"compaction": {"keepRecentTokens": 100}}\n' >"$HOME/.pi/agent/settings.json"
    pi task "$TASK"
    cannot sub_agent "pi has no sub-agents"
    pi effort --continue --thinking high "$EFFORT_TASK"
    turn compaction "$PYTHON" "$ROOT/scripts/clients/compact.py" pi "${PI[@]}" --mode rpc --continue
    pi after --continue "$LAST_TASK"
    task_done
}

"$SCENARIO"
