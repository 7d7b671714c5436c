"""llama-server's own test cases (tools/server/tests/unit in llama.cpp's sources), and for each what shows the same
here, or which row of docs/http.md says what is otherwise.

Facts only. A test is named from tests/ on; a row by its first cell. `EVERY` stands for all cases of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EVERY = "*"

_HERE = "http/llama_server/"
_COMPLETION = f"{_HERE}test_completion.py::"
_CHAT = f"{_HERE}test_chat.py::"
_MESSAGES = f"{_HERE}test_messages.py::"
_SERVER = f"{_HERE}test_server.py::"
_OLDER_CHAT = "http/openai_chat/test_endpoint.py::"
_OLDER_COMPLETION = "http/openai_completions/test_endpoint.py::"
_OLDER_MESSAGES = "http/anthropic/test_endpoint.py::"
_INFILL = "http/openai_completions/test_infill.py::"
_RESPONSES = "http/openai_responses/test_endpoint.py::"
_EMBEDDINGS = "http/embeddings/test_embeddings.py::"
_RERANK = "http/embeddings/test_rerank.py::"
_ACCESS = "http/transport/test_access_control.py::"
_ORIGINS = "http/transport/test_origins.py::"
_STREAMS = "http/streams/test_streams.py::"
_SLOTS = "http/admin/test_slot_files.py::"
_IMAGES = "http/test_images.py::"
_APP = "http/test_app.py::"
_POOLINGS = "daemon/test_embedding.py::"
_DRAFTS = "daemon/test_speculation.py::"

ENDPOINTS = "Other endpoints"
ADDRESSES = "Several addresses"
ALWAYS_ON = "`--no-ui`, `--no-slots`, `--metrics`"
NAMES = "`/v1/models` under several aliases"
METRICS = "Metrics' names"
SHIFT = "Context shift"
PROBABILITIES = "`post_sampling_probs`"
SETTINGS = "`generation_settings`"
PROMPT = "`prompt` in `/completion`'s answers"
PROGRESS = "`cache` in `prompt_progress`"
FULL_POOL = "A pool that is too small for all"
IMAGES = "Images beside a text (`multimodal_data`), or at an address"
NO_PROJECTOR = "Images without a projector"
NO_MESSAGES = "No message in `/v1/messages`"
PARTS = "Parts of a message to go on from"
POOLING = "Vectors of each token (pooling `none`)"
SLOT_FILES = "Files of slots"
ERASE = "`action=erase`"
ID_SLOT = "`id_slot`"
COUNTING = "Counting tokens while the server sleeps"
ADAPTERS = "LoRA adapters"
ORIGINS = "Pages of other origins"
KEY_OF_PAGE = "The page at `/` without a key"
SYNTHETIC = "Drafts that are accepted by lot"

CASES: Mapping[str, Mapping[str, str | Sequence[str]]] = {
    "test_basic.py": {
        "test_server_start_simple": f"{_APP}test_health",
        "test_server_multiple_addresses": ADDRESSES,
        "test_server_props": f"{_SERVER}test_props",
        "test_server_models": f"{_SERVER}test_models_say_what_they_can",
        "test_server_slots": (f"{_APP}test_lanes", ALWAYS_ON),
        "test_load_split_model": f"{_SERVER}test_a_model_in_parts_is_served",
        "test_no_ui": ("http/window/test_pages.py::test_the_page_may_do_nothing_but_what_it_is", ALWAYS_ON),
        "test_server_model_aliases_and_tags": (f"{_APP}test_aliases_stand_for_the_model", NAMES),
    },
    "test_chat_completion.py": {
        "test_chat_completion": f"{_CHAT}test_an_answer",
        "test_chat_completion_cached_tokens": f"{_CHAT}test_how_much_of_a_prompt_was_cached",
        "test_chat_completion_stream": f"{_CHAT}test_a_stream_says_its_role_once_and_its_finish_without_text",
        "test_chat_completion_with_openai_library": f"{_OLDER_CHAT}test_answer",
        "test_chat_template": f"{_OLDER_CHAT}test_the_prompt_is_shown_to_those_who_ask",
        "test_chat_template_assistant_prefill": (f"{_CHAT}test_an_assistants_message_is_gone_on_from", PARTS),
        "test_chat_template_continue_final_message_vllm_compat": f"{_CHAT}test_an_assistants_message_is_gone_on_from",
        "test_chat_template_continue_final_message_mutual_exclusion": (
            f"{_CHAT}test_an_assistants_message_is_gone_on_from"
        ),
        "test_apply_chat_template": f"{_APP}test_apply_template_is_what_the_model_reads",
        "test_completion_with_response_format": f"{_CHAT}test_formats",
        "test_completion_with_json_schema": f"{_OLDER_CHAT}test_json_object_and_llama_servers_ways",
        "test_completion_with_grammar": f"{_OLDER_CHAT}test_grammar",
        "test_completion_with_invalid_grammar": (
            f"{_OLDER_COMPLETION}test_a_bad_grammar_is_refused_before_a_stream_begins"
        ),
        "test_invalid_chat_completion_req": f"{_CHAT}test_what_is_no_conversation_is_refused",
        "test_chat_completion_with_timings_per_token": f"{_CHAT}test_timings_come_with_each_piece_and_at_the_end",
        "test_logprobs": f"{_OLDER_CHAT}test_logprobs_add_up",
        "test_logprobs_stream": f"{_OLDER_CHAT}test_logprobs_add_up",
        "test_logit_bias": f"{_OLDER_CHAT}test_bias_forbids",
        "test_context_size_exceeded": f"{_APP}test_a_prompt_that_does_not_fit_is_told_so_that_agents_compact",
        "test_context_size_exceeded_stream": f"{_APP}test_a_prompt_that_does_not_fit_is_told_so_that_agents_compact",
        "test_return_progress": (f"{_OLDER_CHAT}test_progress_as_llama_server_tells_it", PROGRESS),
        "test_chat_completions_multiple_choices": f"{_CHAT}test_several_choices_again_and_again",
        "test_chat_completions_token_count": f"{_CHAT}test_an_answer",
        "test_verbose_debug": f"{_OLDER_CHAT}test_the_prompt_is_shown_to_those_who_ask",
    },
    "test_compat_anthropic.py": {
        "test_anthropic_messages_basic": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_messages_with_system": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_messages_multipart_content": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_messages_conversation": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_messages_streaming": (
            f"{_OLDER_MESSAGES}test_raw_events_are_the_originals_in_its_order",
            f"{_MESSAGES}test_blocks_of_a_stream_are_numbered_and_closed",
        ),
        "test_anthropic_count_tokens": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_count_tokens_with_system": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_count_tokens_no_max_tokens": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_tool_use_basic": f"{_OLDER_MESSAGES}test_a_tool_is_called",
        "test_anthropic_tool_result": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_tool_result_with_text": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_tool_result_with_image": (
            f"{_IMAGES}test_without_a_projector_images_are_refused_or_told_of",
            NO_PROJECTOR,
        ),
        "test_anthropic_tool_result_error": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_tool_streaming": f"{_OLDER_MESSAGES}test_a_tool_is_called",
        "test_anthropic_vision_format_accepted": (
            f"{_OLDER_MESSAGES}test_refusals_have_the_originals_shape",
            NO_PROJECTOR,
        ),
        "test_anthropic_vision_base64_with_multimodal_model": f"{_IMAGES}test_messages",
        "test_anthropic_stop_sequences": f"{_OLDER_MESSAGES}test_a_stop_sequence",
        "test_anthropic_temperature": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_top_p": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_top_k": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_missing_messages": f"{_OLDER_MESSAGES}test_hostile_bodies_get_a_clear_refusal",
        "test_anthropic_empty_messages": (
            f"{_OLDER_MESSAGES}test_hostile_bodies_get_a_clear_refusal",
            NO_MESSAGES,
        ),
        "test_anthropic_streaming_content_block_indices": (
            f"{_MESSAGES}test_blocks_of_a_stream_are_numbered_and_closed"
        ),
        "test_anthropic_thinking": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_metadata": f"{_MESSAGES}test_what_is_taken",
        "test_anthropic_vs_openai_different_response_format": f"{_MESSAGES}test_the_same_model_speaks_both_apis",
        "test_anthropic_thinking_history_in_count_tokens": (
            f"{_MESSAGES}test_thinking_between_calls_stays_in_the_prompt"
        ),
        "test_anthropic_thinking_history_in_template": f"{_MESSAGES}test_thinking_between_calls_stays_in_the_prompt",
        "test_anthropic_thinking_with_reasoning_model": (
            f"{_OLDER_MESSAGES}test_thinking_is_a_block_of_its_own_and_comes_back"
        ),
    },
    "test_compat_gcp.py": {EVERY: ENDPOINTS},
    "test_compat_oai_responses.py": {
        "test_responses_with_openai_library": f"{_RESPONSES}test_a_text",
        "test_responses_stream_with_openai_library": (
            f"{_RESPONSES}test_a_stream_says_what_the_whole_does",
            f"{_RESPONSES}test_the_order_of_events",
        ),
        "test_responses_stream_with_llama_telemetry": f"{_CHAT}test_responses_tell_progress_and_timings",
    },
    "test_completion.py": {
        "test_completion": (f"{_COMPLETION}test_an_answer_says_how_it_came", f"{_COMPLETION}test_new_lines_are_told"),
        "test_completion_stream": (
            f"{_COMPLETION}test_the_bytes_of_a_stream",
            f"{_COMPLETION}test_settings_are_those_of_the_request_over_those_of_the_server",
            SETTINGS,
        ),
        "test_completion_stream_vs_non_stream": f"{_COMPLETION}test_the_bytes_of_a_stream",
        "test_completion_with_openai_library": (
            f"{_OLDER_COMPLETION}test_answer",
            f"{_COMPLETION}test_openais_answer_names_the_build",
        ),
        "test_completion_stream_with_openai_library": f"{_OLDER_COMPLETION}test_stream_says_the_same",
        "test_completion_stream_with_openai_library_stops": (
            f"{_COMPLETION}test_stop_strings_end_a_stream_before_them"
        ),
        "test_consistent_result_same_seed": f"{_COMPLETION}test_seeds",
        "test_different_result_different_seed": f"{_COMPLETION}test_seeds",
        "test_consistent_result_different_batch_size": f"{_COMPLETION}test_the_size_of_a_batch_changes_no_answer",
        "test_cache_vs_nocache_prompt": f"{_COMPLETION}test_the_cache_changes_no_answer",
        "test_nocache_long_input_prompt": f"{_OLDER_COMPLETION}test_refusals",
        "test_json_prompt_no_mtmd": f"{_OLDER_COMPLETION}test_llama_servers_lists_and_fields",
        "test_json_prompt_mtm_error_when_not_supported": f"{_OLDER_COMPLETION}test_refusals",
        "test_completion_with_tokens_input": (
            f"{_COMPLETION}test_texts_and_ids_in_one_prompt",
            f"{_OLDER_COMPLETION}test_llama_servers_lists_and_fields",
        ),
        "test_completion_parallel_slots": (
            f"{_COMPLETION}test_more_requests_than_lanes_are_all_answered",
            f"{_APP}test_lanes_at_work_say_what_they_do",
        ),
        "test_completion_unified": (
            f"{_COMPLETION}test_a_pool_that_is_too_small_for_all_lets_some_wait",
            FULL_POOL,
        ),
        "test_completion_response_fields": (f"{_COMPLETION}test_fields_are_named_by_their_paths", PROMPT),
        "test_n_probs": f"{_OLDER_COMPLETION}test_llama_servers_probabilities",
        "test_n_probs_stream": f"{_OLDER_COMPLETION}test_llama_servers_probabilities_come_token_by_token",
        "test_n_probs_post_sampling": (
            f"{_SERVER}test_adapters_and_probabilities_after_sampling_are_refused",
            PROBABILITIES,
        ),
        "test_n_probs_post_backend_sampling": PROBABILITIES,
        "test_logit_bias": f"{_COMPLETION}test_biases_of_every_form",
        "test_cancel_request": "http/test_app_server.py::test_clients_that_vanish_free_their_lanes",
        "test_completion_prompt_cache": f"{_COMPLETION}test_prompts_that_take_turns_come_from_memory",
    },
    "test_ctx_shift.py": {
        "test_ctx_shift_enabled": SHIFT,
        "test_ctx_shift_disabled_short_prompt": f"{_OLDER_COMPLETION}test_a_server_with_a_seed_and_a_small_context",
        "test_ctx_shift_disabled_long_prompt": f"{_COMPLETION}test_a_context_that_is_full_ends_the_stream",
        "test_ctx_shift_disabled_stream": f"{_COMPLETION}test_a_context_that_is_full_ends_the_stream",
    },
    "test_embedding.py": {
        "test_embedding_single": f"{_EMBEDDINGS}test_the_shape_is_openais",
        "test_embedding_multiple": f"{_EMBEDDINGS}test_the_shape_is_openais",
        "test_embedding_multiple_with_fa": f"{_EMBEDDINGS}test_a_batch_is_what_each_text_is_alone",
        "test_embedding_mixed_input": f"{_EMBEDDINGS}test_inputs_of_each_form",
        "test_embedding_content_text_same_as_string": f"{_EMBEDDINGS}test_texts_ids_and_objects_mean_the_same",
        "test_embedding_invalid_input": f"{_EMBEDDINGS}test_what_is_refused",
        "test_embedding_pooling_mean": f"{_POOLINGS}test_pooling_that_is_asked_for_comes_before_the_files",
        "test_embedding_pooling_mean_multiple": f"{_EMBEDDINGS}test_a_batch_is_what_each_text_is_alone",
        "test_embedding_pooling_none": POOLING,
        "test_embedding_pooling_none_oai": POOLING,
        "test_embedding_openai_library_single": f"{_EMBEDDINGS}test_openais_client",
        "test_embedding_openai_library_multiple": f"{_EMBEDDINGS}test_openais_client",
        "test_embedding_error_prompt_too_long": f"{_EMBEDDINGS}test_a_text_that_is_too_long_is_told_its_length",
        "test_same_prompt_give_same_result": f"{_EMBEDDINGS}test_a_batch_is_what_each_text_is_alone",
        "test_embedding_usage_single": f"{_EMBEDDINGS}test_hostile_texts",
        "test_embedding_usage_multiple": f"{_EMBEDDINGS}test_the_shape_is_openais",
        "test_embedding_openai_library_base64": f"{_EMBEDDINGS}test_the_bytes_of_an_answer",
        "test_embedding_invalid_request": f"{_EMBEDDINGS}test_what_is_refused",
    },
    "test_ignore_eos.py": {
        "test_ignore_eos_populates_logit_bias": (
            f"{_COMPLETION}test_settings_are_those_of_the_request_over_those_of_the_server",
            SETTINGS,
        ),
        "test_ignore_eos_false_no_logit_bias": (
            f"{_COMPLETION}test_settings_are_those_of_the_request_over_those_of_the_server"
        ),
    },
    "test_infill.py": {
        "test_infill_without_input_extra": f"{_INFILL}test_infill_goes_on_from_the_prompt_that_is_built",
        "test_infill_with_input_extra": f"{_INFILL}test_further_files_and_a_beginning_count",
        "test_invalid_input_extra_req": f"{_INFILL}test_what_is_no_infill_is_refused",
        "test_with_qwen_model": "http/prompts/test_infill.py::test_a_prompt_with_further_files",
    },
    "test_kv_keep_only_active.py": {
        "test_clear_and_restore": f"{_COMPLETION}test_prompts_that_take_turns_come_from_memory",
        "test_disabled_with_flag": f"{_COMPLETION}test_prompts_that_take_turns_come_from_memory",
    },
    "test_lora.py": {EVERY: ADAPTERS},
    "test_mcp_servers.py": {EVERY: ENDPOINTS},
    "test_metrics.py": {
        "test_metrics_disabled": ALWAYS_ON,
        "test_metrics_prometheus_format": ("http/test_app_metrics.py::test_the_document_names_what_is_there", METRICS),
        "test_metrics_prompt_processed_and_cached": f"{_SERVER}test_tokens_of_prompts_and_answers_are_counted",
        "test_metrics_predicted_total_matches_requests": f"{_SERVER}test_tokens_of_prompts_and_answers_are_counted",
        "test_metrics_generation_rate_excludes_first_token": f"{_OLDER_COMPLETION}test_llama_servers_rates",
        "test_metrics_timings_are_finite": f"{_COMPLETION}test_timings_are_numbers",
        "test_metrics_timings_on_prompt_progress": (
            f"{_COMPLETION}test_timings_while_the_prompt_is_read_count_no_token"
        ),
        "test_metrics_slots_idle_after_completion": f"{_SERVER}test_slots_are_idle_after_an_answer",
        "test_metrics_embedding_prompt_is_counted": f"{_EMBEDDINGS}test_it_is_listed",
    },
    "test_proxy.py": {EVERY: ENDPOINTS},
    "test_rerank.py": {
        "test_rerank": f"{_RERANK}test_the_best_document_comes_first",
        "test_rerank_tei_format": f"{_RERANK}test_text_embeddings_inference",
        "test_invalid_rerank_req": f"{_RERANK}test_what_is_refused",
        "test_rerank_usage": f"{_RERANK}test_usage_counts_the_query_with_each_document",
        "test_rerank_top_n": f"{_RERANK}test_top_n",
        "test_rerank_tei_top_n": f"{_RERANK}test_top_n",
    },
    "test_router.py": {EVERY: ENDPOINTS},
    "test_security.py": {
        "test_access_public_endpoint": f"{_ACCESS}test_nothing_without_a_key",
        "test_access_static_assets_without_api_key": (f"{_ACCESS}test_nothing_without_a_key", KEY_OF_PAGE),
        "test_incorrect_api_key": f"{_ACCESS}test_nothing_without_a_key",
        "test_correct_api_key": f"{_ACCESS}test_nothing_without_a_key",
        "test_correct_api_key_anthropic_header": f"{_ACCESS}test_nothing_without_a_key",
        "test_openai_library_correct_api_key": f"{_CHAT}test_openais_client_without_a_version_in_its_address",
        "test_cors_options": (f"{_ORIGINS}test_pages_that_are_allowed", ORIGINS),
        "test_cors_origins_localhost_reflects": (f"{_ORIGINS}test_pages_that_are_allowed", ORIGINS),
        "test_cors_origins_localhost_rejects": (f"{_ORIGINS}test_pages_of_others_get_nothing", ORIGINS),
        "test_cors_origins_defaults_to_localhost_with_tools_enabled": (
            f"{_ORIGINS}test_pages_of_others_get_nothing",
            ORIGINS,
        ),
        "test_cors_proxy_only_forwards_explicit_proxy_headers": ENDPOINTS,
        "test_local_media_file": (f"{_IMAGES}test_no_url_is_fetched", IMAGES),
    },
    "test_sleep.py": {
        "test_server_sleep": f"{_SERVER}test_who_only_looks_wakes_nobody",
        "test_server_sleep_read_only_endpoints": f"{_SERVER}test_who_only_looks_wakes_nobody",
        "test_server_sleep_metrics_buckets": METRICS,
        "test_server_sleep_token_counting_wake": (f"{_SERVER}test_who_only_looks_wakes_nobody", COUNTING),
    },
    "test_slot_save.py": {
        "test_slot_save_restore": (f"{_SLOTS}test_a_conversation_goes_on_from_its_file", ID_SLOT),
        "test_slot_restore_legacy_token_list": SLOT_FILES,
        "test_slot_erase": (f"{_SERVER}test_erasing_a_slot_drops_nothing_that_is_cached", ERASE),
        "test_slot_save_restore_text_only_on_multimodal": f"{_SERVER}test_a_text_is_saved_where_the_model_sees",
        "test_slot_save_restore_with_image": (f"{_SERVER}test_slots_with_images_are_refused", SLOT_FILES),
        "test_slot_save_restore_with_two_images": SLOT_FILES,
        "test_slot_save_restore_with_image_across_restart": SLOT_FILES,
        "test_slot_save_restore_image_payload_larger_than_context": SLOT_FILES,
        "test_slot_restore_media_file_without_mmproj": SLOT_FILES,
        "test_slot_restore_preserves_context_checkpoints": "daemon/test_tiers.py::test_every_way_back_is_exact",
        "test_slot_restore_damaged_checkpoint_appendix": (
            f"{_SLOTS}test_what_is_no_file_of_a_text_is_refused",
            SLOT_FILES,
        ),
        "test_slot_restore_checkpoints_draft_kv_type_change": SLOT_FILES,
    },
    "test_speculative.py": {
        "test_with_and_without_draft": (
            f"{_DRAFTS}test_sampled_tokens_are_those_of_plain_decoding",
            "http/test_speculation.py::test_each_dialect_tells_it_in_its_usage",
        ),
        "test_different_draft_min_draft_max": f"{_DRAFTS}test_every_architecture_with_a_drafter",
        "test_synth_is_deterministic": SYNTHETIC,
        "test_synth_ignores_target_tokens": SYNTHETIC,
        "test_slot_ctx_not_exceeded": f"{_DRAFTS}test_limits_and_ends_inside_a_draft",
        "test_with_ctx_shift": SHIFT,
        "test_multi_requests_parallel": f"{_DRAFTS}test_sampled_tokens_are_those_of_plain_decoding",
    },
    "test_stream.py": {
        "test_stream_resume_and_stop_with_slashed_model_name": (
            f"{_STREAMS}test_an_answer_goes_on_without_its_client",
            f"{_STREAMS}test_deleting_ends_the_answer",
        ),
        "test_stream_stop_during_model_load": (f"{_STREAMS}test_deleting_ends_the_answer", ENDPOINTS),
        "test_stream_resumes_after_reload_during_model_load": (
            f"{_STREAMS}test_an_answer_goes_on_without_its_client",
            ENDPOINTS,
        ),
    },
    "test_systemone.py": {EVERY: ENDPOINTS},
    "test_template.py": {
        "test_reasoning": f"{_CHAT}test_reasoning_in_the_prompt",
        "test_date_inside_prompt": f"{_SERVER}test_a_template_knows_the_day",
        "test_add_generation_prompt": f"{_SERVER}test_a_template_knows_the_day",
    },
    "test_tokenize.py": {
        "test_tokenize_detokenize": f"{_APP}test_tokens_and_back",
        "test_tokenize_with_bos": f"{_SERVER}test_a_vocabularys_bos_comes_first_where_it_is_wanted",
        "test_tokenize_with_pieces": f"{_APP}test_tokens_and_back",
    },
    "test_tool_call.py": {
        "test_completion_with_required_tool_real_model": f"{_OLDER_CHAT}test_forced_calls",
        "test_completion_without_tool_call_fast": f"{_CHAT}test_no_call_where_there_can_be_none",
        "test_completion_without_tool_call_slow": f"{_CHAT}test_no_call_where_there_can_be_none",
        "test_weather": f"{_OLDER_CHAT}test_tool_calls",
        "test_calc_result": f"{_OLDER_CHAT}test_tool_result_comes_back",
        "test_thoughts": ("text/test_answers.py::test_reasoning", f"{_OLDER_CHAT}test_budgets_of_reasoning"),
        "test_hello_world": f"{_OLDER_CHAT}test_tool_calls",
    },
    "test_tools_builtin.py": {EVERY: ENDPOINTS},
    "test_vision_api.py": {
        "test_models_supports_multimodal_capability": f"{_SERVER}test_models_say_what_they_can",
        "test_v1_models_supports_multimodal_capability": f"{_SERVER}test_models_say_what_they_can",
        "test_vision_chat_completion": (
            f"{_IMAGES}test_the_same_image_comes_from_memory_and_another_answers_otherwise",
            f"{_IMAGES}test_files_that_are_no_images_are_refused",
            f"{_IMAGES}test_no_url_is_fetched",
            IMAGES,
        ),
        "test_vision_chat_completion_token_count": f"{_IMAGES}test_messages",
        "test_vision_completion": (f"{_SERVER}test_images_beside_a_text_are_refused_though_the_model_sees", IMAGES),
        "test_vision_embeddings": (f"{_EMBEDDINGS}test_what_is_refused", IMAGES),
        "test_vision_embeddings_oai_content": (f"{_EMBEDDINGS}test_what_is_refused", IMAGES),
    },
}
