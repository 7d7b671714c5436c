#!/usr/bin/env bash
# opencode against `luce serve`. A person's settings: the same provider in opencode.json.
. "$(dirname "$0")/session.sh"
need_client opencode-ai 1.18.33 opencode
begin
MAY=$([ "$SCENARIO" = task ] && echo allow || echo ask)
cat >opencode.json <<JSON
{
  "\$schema": "https://opencode.ai/config.json",
  "provider": {
    "luce": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "luce",
      "options": {"baseURL": "$URL/v1", "apiKey": "${LUCE_API_KEY:-dummy}"},
      "models": {
        "luce": {
          "name": "luce", "tool_call": true, "reasoning": true, "limit": {"context": 65536, "output": $TOKENS},
          "variants": {"high": {"reasoningEffort": "high"}}
        }
      }
    }
  },
  "model": "luce/luce",
  "small_model": "luce/luce",
  "permission": {"bash": "$MAY", "edit": "$MAY", "webfetch": "ask", "external_directory": "ask"},
  "autoupdate": false,
  "share": "disabled"
}
JSON
opencode() { turn "$1" "$CLIENT" run --format json --model luce/luce "${@:2}"; }

turns() {
    opencode first_turn "$FIRST_MESSAGE"
    opencode second_turn --continue "$SECOND_MESSAGE"
    opencode second_session "$OTHER_FIRST_MESSAGE"
    verdict
}

task() {
    opencode task "$TASK"
    opencode sub_agent --continue "$AGENT_TASK"
    opencode effort --continue --variant high "$EFFORT_TASK"
    turn compaction "$PYTHON" "$ROOT/scripts/clients/compact.py" opencode "$CLIENT" serve --port 0
    opencode after --continue "$LAST_TASK"
    task_done
}

"$SCENARIO"
