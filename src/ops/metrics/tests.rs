use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
};

use jiff::Timestamp;
use prometheus_client::metrics::histogram::Histogram;
use strum::VariantArray as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{
    collector::{
        counts::{Counts, Totals},
        queue::Depth,
        report::{KindReport, RefusedReport, WorkReport},
    },
    counters,
    handover::{
        probes::ProbeState,
        report::{FenceReport, ProbeReport, RoleReport},
    },
    histogram::{self, Histograms},
    model::{kubelet_unit::KubeletUnit, observation::Verdict, role::RoleName, trace::Step},
    ops::gc_status::GcReport,
};

mod monitoring;

use monitoring::exported;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/metrics.md");

fn probe(probe: &str, state: ProbeState) -> ProbeReport {
    ProbeReport {
        probe: probe.to_owned(),
        state,
        ..ProbeReport::default()
    }
}

/// A scrape with every family.
pub(super) fn full() -> Scrape {
    let pods = KindReport {
        plural: "pods".to_owned(),
        synced: true,
        objects: 7,
        silent_seconds: Some(2),
        ..KindReport::default()
    };
    let sets = KindReport {
        group: "apps".to_owned(),
        plural: "replicasets".to_owned(),
        ..KindReport::default()
    };
    let failures = [("delete".into(), [("500".into(), 3)].into())].into();
    let report = WorkReport {
        kinds: vec![pods, sets],
        queue: Depth {
            ready: 1,
            busy: 2,
            delayed: 3,
        },
        oldest_seconds: 4,
        refused: vec![RefusedReport {
            step: "delete".to_owned(),
            code: 403,
            since_seconds: 90,
            ..RefusedReport::default()
        }],
        counts: Counts {
            deleted: 42,
            failures,
            ..Counts::default()
        },
        ..WorkReport::default()
    };
    let counts = Counts {
        deleted: 2,
        ..Counts::default()
    };
    Scrape {
        status: Some(StatusReport {
            version: "1.2.3".to_owned(),
            since: Timestamp::from_second(1_767_000_000).unwrap(),
            takes_pods: true,
            role: Some(RoleReport {
                role: RoleName::Active,
                since: Timestamp::from_second(1_767_052_800).ok(),
                probes: vec![
                    probe("process", ProbeState::Down),
                    probe("healthz", ProbeState::Unknown),
                    probe("lease", ProbeState::Alive),
                ],
                fencing: FenceReport {
                    stopped: 3,
                    failed: 1,
                    last: None,
                },
                kubelet_unit: Some(KubeletUnit {
                    active_state: "activating".to_owned(),
                    sub_state: "auto-restart".to_owned(),
                    ..KubeletUnit::default()
                }),
                ..RoleReport::default()
            }),
            credentials_expire: Timestamp::from_second(1_767_139_200).ok(),
            counters: counters::Counts {
                failures: [(Step::Volumes, [("EBUSY".into(), 5)].into())].into(),
                observations: Verdict::VARIANTS.iter().map(|&verdict| (verdict, 0)).collect(),
                ..counters::Counts::default()
            },
            ..StatusReport::default()
        }),
        collector: Some(CollectorMetrics {
            status: GcReport {
                credentials_expire: Timestamp::from_second(1_767_225_600).ok(),
                work: Some(report),
                ..GcReport::default()
            },
            earlier: Totals {
                counts,
                active_periods: 2,
                ..Totals::default()
            },
            ..CollectorMetrics::default()
        }),
        durations: Some(durations()),
    }
}

/// One observation in each histogram.
fn durations() -> PodDurations {
    let observed = |histogram: Histogram| {
        histogram.observe(0.03);
        histogram
    };
    let steps = Histograms::new_with_constructor(histogram::of_requests);
    for step in Step::VARIANTS {
        steps.get_or_create(&[("step", step.name().into())]).observe(0.03);
    }
    let runtime = Histograms::new_with_constructor(histogram::of_requests);
    for code in ["OK", "NotFound"] {
        let labels = [("method", "StopPodSandbox".into()), ("code", code.into())];
        runtime.get_or_create(&labels).observe(0.03);
    }
    REQUEST_DURATIONS
        .get_or_create(&[("verb", "DELETE".into()), ("code", "409".into())])
        .observe(0.03);
    PodDurations {
        teardowns: observed(histogram::of_teardowns()),
        commits: observed(histogram::of_requests()),
        steps,
        runtime,
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

/// Rows of the reference page by section: name, type, labels and help of each family.
fn reference_rows(text: &str) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut rows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let (without_pods, _) = without_pods_and_collector();
    for (name, kind) in families(text) {
        let base = name.trim_end_matches("_total").trim_end_matches("_info");
        let section = match base {
            _ if base.starts_with("process_") => "process",
            _ if base.starts_with("pod_teardown_gc_") => "gc",
            _ if without_pods.contains(&name) => "agent",
            _ => "pods",
        };
        let mut lines = text.lines();
        let help = lines
            .find_map(|line| line.strip_prefix(&format!("# HELP {base} ")))
            .filter(|help| help.len() > 5)
            .unwrap_or_else(|| panic!("help.txt lacks {base}"));
        let sample = if kind == "histogram" {
            format!("{name}_count")
        } else {
            name.clone()
        };
        let labels = exported().get(&sample).cloned().unwrap_or_default();
        let labels: Vec<&str> = labels.keys().map(String::as_str).collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let row = format!("| `{name}{labels}` | {kind} | {help} |");
        rows.entry(section).or_default().insert(row);
    }
    rows
}

#[test]
fn reference_page_lists_the_exported_metrics() {
    let before = fs::read_to_string(DOCS).unwrap();
    let mut page = before.clone();
    for (section, rows) in reference_rows(&text(&full()).unwrap()) {
        let begin = format!("<!-- {section} -->\n");
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once("<!-- end -->").unwrap();
        let rows: Vec<_> = rows.into_iter().collect();
        let table = format!("| Metric | Type | Meaning |\n|---|---|---|\n{}\n", rows.join("\n"));
        page = format!("{before}{begin}{table}<!-- end -->{after}");
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(DOCS, page).unwrap();
    }
    assert!(page == before, "run UPDATE_DOCS=1 cargo test --lib reference_page");
}

#[test]
fn names_do_not_depend_on_the_state_unless_a_series_has_labels() {
    let full = full();
    let bare = Scrape {
        status: full.status.clone(),
        collector: Some(CollectorMetrics::default()),
        ..Scrape::default()
    };
    let names = |scrape: &Scrape| families(&text(scrape).unwrap());
    let missing = names(&full).into_iter().filter(|family| !names(&bare).contains(family));
    let labels = exported();
    for (name, kind) in missing.filter(|(_, kind)| kind != "histogram") {
        let sample = labels.get(&name).unwrap_or_else(|| panic!("{name} {kind}"));
        assert!(!sample.is_empty() || name.contains("credentials_expiry"), "{name}");
    }
}

#[test]
fn samples_have_their_labels_and_include_earlier_terms_as_leader() {
    let text = text(&full()).unwrap();
    for line in [
        r#"pod_teardown_build_info{version="1.2.3"} 1"#,
        r#"pod_teardown_role{role="active"} 1"#,
        r#"pod_teardown_role{role="standby"} 0"#,
        r#"pod_teardown_standby_reason{reason="kubelet-unresponsive"} 0"#,
        r#"pod_teardown_standby_reason{reason="kubelet-elsewhere"} 0"#,
        "pod_teardown_role_since_timestamp_seconds 1767052800.0",
        r#"pod_teardown_kubelet_probe_alive{probe="process"} 0"#,
        r#"pod_teardown_kubelet_probe_alive{probe="healthz"} 0"#,
        r#"pod_teardown_kubelet_probe_alive{probe="lease"} 1"#,
        r#"pod_teardown_kubelet_unit_state{state="restarting"} 1"#,
        r#"pod_teardown_kubelet_unit_state{state="failed"} 0"#,
        r#"pod_teardown_kubelets_fenced_total{result="stopped"} 3"#,
        r#"pod_teardown_kubelets_fenced_total{result="failed"} 1"#,
        "pod_teardown_credentials_expiry_timestamp_seconds 1767139200.0",
        r#"pod_teardown_failures_total{step="volumes",reason="EBUSY"} 5"#,
        "pod_teardown_gc_objects_deleted_total 42",
        "pod_teardown_gc_activations_total 2",
        "pod_teardown_gc_credentials_expiry_timestamp_seconds 1767225600.0",
        r#"pod_teardown_gc_kind_objects{group="",resource="pods"} 7"#,
        r#"pod_teardown_gc_kind_synced{group="apps",resource="replicasets"} 0"#,
        r#"pod_teardown_gc_kind_watch_silence_seconds{group="",resource="pods"} 2.0"#,
        r#"pod_teardown_gc_queue_depth{state="delayed"} 3"#,
        r#"pod_teardown_gc_failures_total{step="delete",reason="500"} 3"#,
        r#"pod_teardown_gc_refused_seconds{step="delete",reason="403"} 90.0"#,
        r#"pod_teardown_pods_failing{step="volumes"} 0"#,
        "pod_teardown_teardown_duration_seconds_count 1",
        r#"pod_teardown_teardown_step_duration_seconds_bucket{le="0.025",step="volumes"} 0"#,
        r#"pod_teardown_teardown_step_duration_seconds_bucket{le="0.05",step="volumes"} 1"#,
        r#"pod_teardown_teardown_step_duration_seconds_bucket{le="+Inf",step="volumes"} 1"#,
        r#"pod_teardown_runtime_request_duration_seconds_sum{method="StopPodSandbox",code="OK"} 0.03"#,
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in {text}");
    }
    // Other tests of this process count their requests, too.
    let request = r#"pod_teardown_api_request_duration_seconds_count{verb="DELETE",code="409"} "#;
    assert!(text.contains(request) && text.ends_with("# EOF\n"), "{text}");
}

/// Names and text of an agent without pods and collector.
fn without_pods_and_collector() -> (BTreeSet<String>, String) {
    let mut scrape = full();
    scrape.collector = None;
    scrape.durations = None;
    if let Some(status) = &mut scrape.status {
        status.takes_pods = false;
    }
    let text = text(&scrape).unwrap();
    (families(&text).into_iter().map(|(name, _)| name).collect(), text)
}

#[test]
fn agent_without_pods_and_collector_exports_only_its_own_metrics() {
    let (names, text) = without_pods_and_collector();
    let own: Vec<_> = names.iter().filter(|name| !name.starts_with("process_")).collect();
    assert_eq!(
        own,
        [
            "pod_teardown_build_info",
            "pod_teardown_log_lines_dropped_total",
            "pod_teardown_panics_total",
        ]
    );
    // Every process metric can be read on this machine.
    let process: Vec<_> = names.iter().filter(|name| name.starts_with("process_")).collect();
    assert_eq!(process.len(), 6);
    for name in process {
        let sample = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        assert!(
            sample.is_some_and(|value| value.parse::<f64>().unwrap() > 0.0),
            "{name}: {text}"
        );
    }
}

/// Serves the metrics of an agent without pods and collector.
async fn served() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let admin = Admin {
        node: "n1".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        pods: None,
        gc: None,
    };
    (address, tokio::spawn(serve(Arc::new(admin), Arc::new(listener))))
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n";

/// Sends this and reads until the server closes the connection.
async fn answers_to(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // The server may reset the connection after its answer, because the client has sent more.
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn clients_that_do_not_read_or_send_do_not_block_a_scrape() {
    let (address, server) = served().await;
    for request in [&GET.repeat(1000)[..], b"GET"] {
        let mut clients = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(request).await.ok();
            clients.push(client);
        }
        // If these clients blocked a scrape, it would wait until two rounds of their connections have timed out.
        let answer = timeout(CONNECTION_TIMEOUT * 3 / 2, answers_to(address, GET)).await;
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_request_is_closed() {
    let (address, server) = served().await;
    assert_eq!(answers_to(address, b"GET").await, "");
    server.abort();
}
