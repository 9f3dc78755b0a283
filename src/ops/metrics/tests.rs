use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::*;
use crate::{
    collector::{
        counts::{Counts, Totals},
        limit::LimitState,
        metrics_snapshot::{KindMetrics, MetricsSnapshot},
        queue::Depth,
    },
    counters,
    handover::{
        probes::ProbeState,
        report::{FenceReport, ProbeReport, RoleReport},
    },
    model::trace::Step,
};

const DOCS: &str = include_str!("../../../docs/metrics.md");

fn probe(probe: &str, shows: ProbeState) -> ProbeReport {
    ProbeReport {
        probe: probe.to_owned(),
        shows,
        ..ProbeReport::default()
    }
}

/// A scrape with every family.
pub(super) fn full() -> Scrape {
    let pods = KindMetrics {
        resource: "pods".to_owned(),
        synced: true,
        objects: 7,
        silent: Some(Duration::from_millis(1500)),
        ..KindMetrics::default()
    };
    let sets = KindMetrics {
        group: "apps".to_owned(),
        resource: "replicasets".to_owned(),
        ..KindMetrics::default()
    };
    let failures = [("delete".into(), [("500".into(), 3)].into())].into();
    let snapshot = MetricsSnapshot {
        kinds: vec![pods, sets],
        queue: Depth {
            ready: 1,
            busy: 2,
            delayed: 3,
        },
        oldest: Duration::from_secs(4),
        limit: Some(LimitState {
            max_in_flight: 16,
            latency: Some(0.25),
        }),
        refused: BTreeMap::from([(("delete", 403), Duration::from_secs(90))]),
        counts: Counts {
            deleted: 40,
            failures,
            ..Counts::default()
        },
        ..MetricsSnapshot::default()
    };
    let counts = Counts {
        deleted: 2,
        ..Counts::default()
    };
    Scrape {
        status: Some(StatusReport {
            version: "1.2.3".to_owned(),
            takes_pods: true,
            understudy: Some(RoleReport {
                turn: "ours".to_owned(),
                since: Timestamp::from_second(1_767_052_800).ok(),
                probes: vec![
                    probe("process", ProbeState::Down),
                    probe("healthz", ProbeState::Unknown),
                    probe("lease", ProbeState::Alive),
                ],
                fenced: FenceReport {
                    stopped: 3,
                    failed: 1,
                    last: None,
                },
                ..RoleReport::default()
            }),
            credentials_end: Timestamp::from_second(1_767_139_200).ok(),
            counters: counters::Counts {
                failures: [(Step::Volumes, [("EBUSY".into(), 5)].into())].into(),
                ..counters::Counts::default()
            },
            ..StatusReport::default()
        }),
        collector: Some(CollectorMetrics {
            is_active: true,
            credentials_end: Timestamp::from_second(1_767_225_600).ok(),
            earlier: Totals {
                counts,
                active_periods: 2,
                ..Totals::default()
            },
            snapshot: Some(snapshot),
            ..CollectorMetrics::default()
        }),
    }
}

/// Names and types of all families, with the suffixes of their samples.
fn families(text: &str) -> BTreeSet<(String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let family = |line: &str| {
        let (name, kind) = line.split_once(' ').unwrap();
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        (format!("{name}{suffix}"), kind.to_owned())
    };
    types.map(family).collect()
}

#[test]
fn documented_metrics_are_the_exported_ones() {
    // Rows of alerts contain expressions.
    let row = |line: &str| {
        let (name, row) = line.strip_prefix("| `")?.split_once("` | ")?;
        let (kind, _) = row.split_once(" | ")?;
        (!name.contains(' ')).then(|| (name.to_owned(), kind.to_owned()))
    };
    let documented: BTreeSet<_> = DOCS.lines().filter_map(row).collect();
    assert_eq!(documented, families(&text(full()).unwrap()));
}

#[test]
fn names_do_not_depend_on_the_state() {
    let mut bare = full();
    bare.collector = Some(CollectorMetrics::default());
    assert_eq!(families(&text(bare).unwrap()), families(&text(full()).unwrap()));
}

#[test]
fn samples_have_their_labels_and_include_earlier_terms_as_leader() {
    let text = text(full()).unwrap();
    for line in [
        r#"pod_teardown_build_info{version="1.2.3"} 1"#,
        r#"pod_teardown_turn{turn="ours"} 1"#,
        r#"pod_teardown_turn{turn="wedged"} 0"#,
        r#"pod_teardown_turn{turn="unseen"} 0"#,
        "pod_teardown_turn_since_seconds 1767052800.0",
        r#"pod_teardown_kubelet_lives{sign="process"} 0"#,
        r#"pod_teardown_kubelet_lives{sign="healthz"} 0"#,
        r#"pod_teardown_kubelet_lives{sign="lease"} 1"#,
        r#"pod_teardown_kubelets_fenced_total{result="stopped"} 3"#,
        r#"pod_teardown_kubelets_fenced_total{result="failed"} 1"#,
        "pod_teardown_credentials_expire_seconds 1767139200.0",
        r#"pod_teardown_failures_total{step="volumes",reason="EBUSY"} 5"#,
        "pod_teardown_gc_objects_deleted_total 42",
        "pod_teardown_gc_turns_total 2",
        "pod_teardown_gc_credentials_expire_seconds 1767225600.0",
        r#"pod_teardown_gc_kind_objects{group="",resource="pods"} 7"#,
        r#"pod_teardown_gc_kind_synced{group="apps",resource="replicasets"} 0"#,
        r#"pod_teardown_gc_kind_watch_silence_seconds{group="",resource="pods"} 1.5"#,
        r#"pod_teardown_gc_queue_depth{state="put_off"} 3"#,
        r#"pod_teardown_gc_failures_total{step="delete",reason="500"} 3"#,
        r#"pod_teardown_gc_refused_seconds{step="delete",reason="403"} 90.0"#,
        "pod_teardown_gc_write_latency_seconds 0.25",
        r#"pod_teardown_pods_failing{step="volumes"} 0"#,
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn agent_without_pods_and_collector_exports_only_its_own_metrics() {
    let mut scrape = full();
    scrape.collector = None;
    if let Some(status) = &mut scrape.status {
        status.takes_pods = false;
    }
    let names: Vec<String> = families(&text(scrape).unwrap())
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        names,
        [
            "pod_teardown_build_info",
            "pod_teardown_log_lines_dropped_total",
            "pod_teardown_panics_total",
            "pod_teardown_start_time_seconds",
        ]
    );
}
