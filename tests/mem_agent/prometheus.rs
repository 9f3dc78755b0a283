//! A real Prometheus and promtool read the metrics of the agent, its alerts and its dashboard. In real time.

use std::{
    net::SocketAddr,
    process::{Command, Output, Stdio},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    process::{Child, Command as AsyncCommand},
};

use crate::prelude::*;

const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/alerts.yaml");
const GC_ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/gc-alerts.yaml");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring/dashboard.json");
const ALERT_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promtool/alerts_test.yaml");
/// Much longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Prometheus that scrapes one address each second, with the alerting rules.
struct Prometheus {
    addr: SocketAddr,
    _reserved: TcpSocket,
    _child: Child,
    dir: TempDir,
}

fn promtool(arguments: &[&str], stdin: Stdio) -> Output {
    let mut command = Command::new("promtool");
    let output = command.args(arguments).stdin(stdin).output();
    output.unwrap_or_else(|error| panic!("promtool: {error}: install the package prometheus"))
}

fn assert_accepted(output: &Output) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    // `check metrics` only warns with some exit codes: it must be silent.
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{out}\n{err}");
}

/// Binds a free address. The socket never listens, and keeps the port from other programs.
fn reserve_addr() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    // The agent and Prometheus set it, too, and so may use the address.
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Headers and body of the answer to a GET.
async fn get(addr: SocketAddr, path: &str, accept: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

#[track_caller]
fn in_time<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < deadline, "at {caller}: never: {what}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// An agent with metrics at this address that has torn one pod down, and another whose sandbox cannot be stopped.
async fn busy_node(metrics: SocketAddr) -> Node {
    let mut node = Node::new().await;
    node.flags.metrics_addr = Some(metrics.to_string());
    node.add_stuck_and_simple_pod();
    node.start().await;
    node.delete("web", Some(1)).await;
    node.wait_torn_down("web").await;
    node.delete("stuck", Some(1)).await;
    node.wait_blocked("stuck", "no CNI configuration").await;
    node
}

// === impl Prometheus ===

impl Prometheus {
    async fn start(target: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (reserved, addr) = reserve_addr();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{ALERTS}, {GC_ALERTS}]\n\
             scrape_configs: [{{job_name: pod-teardown, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        let file = dir.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        assert_accepted(&promtool(&["check", "config", file.to_str().unwrap()], Stdio::null()));
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let child = AsyncCommand::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus: {error}: install the package prometheus"));
        let prometheus = Self {
            addr,
            _reserved: reserved,
            _child: child,
            dir,
        };
        in_time("Prometheus is ready", async || {
            get(addr, "/-/ready", "*/*")
                .await
                .is_some_and(|(head, _)| head.contains("200 OK"))
        })
        .await;
        prometheus
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    async fn api(&self, path: &str) -> Value {
        let (head, body) = get(self.addr, path, "*/*").await.unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {head}\n{body}"));
        assert_eq!(answer["status"], "success", "{path}: {body}\n{}", self.log());
        answer["data"].clone()
    }

    /// The samples of an expression now.
    async fn query(&self, expr: &str) -> Vec<Value> {
        let query = utf8_percent_encode(expr, NON_ALPHANUMERIC);
        let data = self.api(&format!("/api/v1/query?query={query}")).await;
        data["result"].as_array().unwrap().clone()
    }

    /// Value of the only sample.
    async fn value(&self, expr: &str) -> Option<f64> {
        let samples = self.query(expr).await;
        let [sample] = &samples[..] else { return None };
        sample["value"][1].as_str()?.parse().ok()
    }
}

#[test]
fn promtool_accepts_the_alerts_and_their_unit_tests() {
    assert_accepted(&promtool(&["check", "rules", ALERTS, GC_ALERTS], Stdio::null()));
    assert_accepted(&promtool(&["test", "rules", ALERT_TESTS], Stdio::null()));
}

#[test]
fn every_alert_has_a_unit_test_in_which_it_fires() {
    let read = |file: &str| -> Value { serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap() };
    let tests = read(ALERT_TESTS);
    let groups = [ALERTS, GC_ALERTS].map(|file| read(file)["groups"].as_array().unwrap().clone());
    let rules = groups
        .iter()
        .flatten()
        .flat_map(|group| group["rules"].as_array().unwrap());
    for rule in rules {
        let fires = format!("alertname=\"{}\"", rule["alert"].as_str().unwrap());
        let tests = tests["tests"].as_array().unwrap();
        assert!(
            tests
                .iter()
                .any(|test| test.to_string().replace('\\', "").contains(&fires)),
            "{fires}"
        );
    }
}

#[tokio::test]
async fn prometheus_scrapes_the_agent_and_answers_the_queries_of_the_dashboard() {
    let (_reserved, metrics) = reserve_addr();
    let node = busy_node(metrics).await;
    let prometheus = Prometheus::start(metrics).await;
    in_time("the agent is scraped", async || {
        prometheus.value("pod_teardown_teardowns_finished_total").await == Some(1.0)
    })
    .await;
    // A scrape that takes more than a second fails on a busy machine. Until the next one there are no samples.
    in_time("the last scrape has succeeded", async || {
        prometheus.api("/api/v1/targets").await["activeTargets"][0]["lastError"] == ""
    })
    .await;
    for (expr, value) in [
        ("sum(pod_teardown_pods_terminating)", 1.0),
        (r#"pod_teardown_pods_failing{step="sandbox"}"#, 1.0),
        ("pod_teardown_teardown_duration_seconds_count", 1.0),
        (r#"sum(pod_teardown_teardown_duration_seconds_bucket{le="+Inf"})"#, 1.0),
    ] {
        in_time(expr, async || prometheus.value(expr).await == Some(value)).await;
    }

    // Histograms have percentiles once they have grown between two scrapes.
    node.simple_pod("later");
    node.delete("later", Some(1)).await;
    node.wait_torn_down("later").await;
    let percentile = "histogram_quantile(0.5, sum by (le) (rate(pod_teardown_teardown_duration_seconds_bucket[5m])))";
    in_time("the percentile is known", async || {
        prometheus
            .value(percentile)
            .await
            .is_some_and(|seconds| seconds > 0.0 && seconds < 60.0)
    })
    .await;
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(DASHBOARD).unwrap()).unwrap();
    let mut answered = 0;
    for panel in dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|panel| panel["type"] != "row")
    {
        for target in panel["targets"].as_array().unwrap() {
            let expr = target["expr"].as_str().unwrap().replace("$node", ".*");
            // This agent has no collector, and is always active.
            let is_absent = ["_gc_", "_role", "_standby_reason", "credentials", "hooks"]
                .iter()
                .any(|it| expr.contains(it));
            let has_samples = async || !prometheus.query(&expr).await.is_empty();
            if is_absent {
                answered += usize::from(has_samples().await);
            } else {
                in_time(&format!("{}: {expr}", panel["title"]), has_samples).await;
                answered += 1;
            }
        }
    }
    assert!(answered > 20, "{answered}");
    let rules = async || prometheus.api("/api/v1/rules").await;
    in_time("all rules are evaluated", async || {
        !rules().await.to_string().contains(r#""health":"unknown""#)
    })
    .await;
    let rules = rules().await;
    for group in rules["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
    }
    in_time("the alert is pending", async || {
        let pending = prometheus.query(r#"ALERTS{alertname="PodTeardownStuck"}"#).await;
        pending.len() == 1
    })
    .await;
}
