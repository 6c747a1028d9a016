"""Metrics that Prometheus and Alertmanager export of themselves, by the names of 2.42 and 0.25, which later ones kept.

Those that are of use for watching the monitoring; not each of the runtime's. Called by :mod:`exporter.bundle.metrics`.
A test asks real servers whether they know them.
"""

from __future__ import annotations

from typing import Final

_GAUGES = """
    alertmanager_alerts alertmanager_build_info alertmanager_cluster_enabled alertmanager_cluster_failed_peers
    alertmanager_cluster_members alertmanager_config_hash alertmanager_config_last_reload_success_timestamp_seconds
    alertmanager_config_last_reload_successful alertmanager_dispatcher_aggregation_groups alertmanager_integrations
    alertmanager_marked_alerts alertmanager_receivers alertmanager_silences
    go_goroutines go_info go_memstats_alloc_bytes go_memstats_heap_inuse_bytes go_memstats_sys_bytes go_threads
    process_max_fds process_open_fds process_resident_memory_bytes process_start_time_seconds
    process_virtual_memory_bytes process_virtual_memory_max_bytes
    prometheus_build_info prometheus_config_last_reload_success_timestamp_seconds
    prometheus_config_last_reload_successful prometheus_engine_queries prometheus_engine_queries_concurrent_max
    prometheus_notifications_alertmanagers_discovered prometheus_notifications_queue_capacity
    prometheus_notifications_queue_length prometheus_ready
    prometheus_remote_storage_highest_timestamp_in_seconds
    prometheus_remote_storage_queue_highest_sent_timestamp_seconds prometheus_remote_storage_samples_pending
    prometheus_remote_storage_shards prometheus_remote_storage_shards_desired prometheus_remote_storage_shards_max
    prometheus_rule_group_interval_seconds prometheus_rule_group_last_duration_seconds
    prometheus_rule_group_last_evaluation_samples prometheus_rule_group_last_evaluation_timestamp_seconds
    prometheus_rule_group_rules prometheus_sd_discovered_targets prometheus_sd_failed_configs
    prometheus_target_scrape_pool_targets
    prometheus_tsdb_blocks_loaded prometheus_tsdb_head_chunks prometheus_tsdb_head_max_time_seconds
    prometheus_tsdb_head_min_time_seconds prometheus_tsdb_head_series prometheus_tsdb_lowest_timestamp_seconds
    prometheus_tsdb_retention_limit_bytes prometheus_tsdb_storage_blocks_bytes prometheus_tsdb_wal_segment_current
    """
GAUGES: Final = frozenset(_GAUGES.split())

_COUNTERS = """
    alertmanager_alerts_invalid_total alertmanager_alerts_received_total
    alertmanager_notification_requests_failed_total alertmanager_notification_requests_total
    alertmanager_notifications_failed_total alertmanager_notifications_total
    process_cpu_seconds_total
    prometheus_http_requests_total
    prometheus_notifications_dropped_total prometheus_notifications_errors_total prometheus_notifications_sent_total
    prometheus_remote_storage_exemplars_in_total prometheus_remote_storage_samples_dropped_total
    prometheus_remote_storage_samples_failed_total prometheus_remote_storage_samples_in_total
    prometheus_remote_storage_samples_retried_total prometheus_remote_storage_samples_total
    prometheus_rule_evaluation_failures_total prometheus_rule_evaluations_total
    prometheus_rule_group_iterations_missed_total prometheus_rule_group_iterations_total
    prometheus_target_scrape_pools_failed_total prometheus_target_scrapes_exceeded_body_size_limit_total
    prometheus_target_scrapes_exceeded_sample_limit_total
    prometheus_target_scrapes_sample_duplicate_timestamp_total
    prometheus_target_scrapes_sample_out_of_bounds_total prometheus_target_scrapes_sample_out_of_order_total
    prometheus_tsdb_checkpoint_creations_failed_total prometheus_tsdb_compactions_failed_total
    prometheus_tsdb_compactions_total prometheus_tsdb_head_samples_appended_total
    prometheus_tsdb_head_series_created_total prometheus_tsdb_head_series_removed_total
    prometheus_tsdb_reloads_failures_total prometheus_tsdb_wal_corruptions_total
    prometheus_tsdb_wal_truncations_failed_total
    """
COUNTERS: Final = frozenset(_COUNTERS.split())

_SUMMARIES = """
    prometheus_engine_query_duration_seconds prometheus_notifications_latency_seconds
    prometheus_rule_evaluation_duration_seconds prometheus_rule_group_duration_seconds
    prometheus_target_interval_length_seconds prometheus_target_sync_length_seconds
    prometheus_tsdb_wal_fsync_duration_seconds
    """
SUMMARIES: Final = frozenset(_SUMMARIES.split())

_HISTOGRAMS = """
    alertmanager_http_request_duration_seconds alertmanager_notification_latency_seconds
    prometheus_http_request_duration_seconds prometheus_remote_storage_sent_batch_duration_seconds
    prometheus_tsdb_compaction_duration_seconds
    """
HISTOGRAMS: Final = frozenset(_HISTOGRAMS.split())

_OF_A_SCRAPE = """
    up scrape_duration_seconds scrape_samples_scraped scrape_samples_post_metric_relabeling scrape_series_added
    """
OF_A_SCRAPE: Final = frozenset(_OF_A_SCRAPE.split())
"""What Prometheus itself writes for every target. They have the target's labels only."""

OF_ALERTS: Final = frozenset({"ALERTS", "ALERTS_FOR_STATE"})
"""What Prometheus writes for every alert, with that alert's labels."""
