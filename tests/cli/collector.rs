//! The output of an agent that only collects: `status`, `why` and metrics.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    apiserver::{Config, MemApiServer},
    owner_references::to,
    rest::Client,
};

use crate::{
    command::{CommandOutput, Flags, run_command},
    run::Agent,
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Flags of an agent that only collects, and its metrics address, whose port was free a moment ago.
fn collector_flags(api: &MemApiServer) -> (Flags, String) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    collector_flags_at(api, &free)
}

/// As [`collector_flags`], with the address of a listener that the caller keeps.
fn collector_flags_at(api: &MemApiServer, metrics: &TcpListener) -> (Flags, String) {
    let addr = metrics.local_addr().unwrap().to_string();
    let flags = Flags::valid()
        .with("mode", "never")
        .with("gc", "always")
        .with("metrics-addr", addr.clone())
        .with_path("gc-kubeconfig", "gc");
    std::fs::write(flags.path("gc"), api.collector_kubeconfig()).unwrap();
    (flags, addr)
}

async fn map(admin: &Client, name: &str, finalizers: &[&str], owner: Option<&Value>) -> Value {
    let owners: Vec<Value> = owner.iter().map(|owner| to(owner, true)).collect();
    let metadata = json!({ "name": name, "finalizers": finalizers, "ownerReferences": owners });
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
    admin.create(MAPS, &object).await.unwrap().ok().unwrap()
}

fn run(agent: &Agent, arguments: &[&str]) -> CommandOutput {
    let socket = agent.flags.socket().to_str().unwrap();
    run_command(&[arguments, &["--socket", socket]].concat())
}

/// The HTTP answer to a request, with its headers.
fn http(addr: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn why_leads_from_a_foreground_deletion_to_the_object_with_a_finalizer() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let admin = api.admin().unwrap();
    let owner = map(&admin, "owner", &[], None).await;
    let middle = map(&admin, "middle", &[], Some(&owner)).await;
    map(&admin, "last", &["example.com/hold"], Some(&middle)).await;
    let foreground = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground" });
    admin
        .delete(&format!("{MAPS}/owner"), Some(&foreground))
        .await
        .unwrap()
        .ok()
        .unwrap();

    let (flags, addr) = collector_flags(&api);
    let mut agent = Agent::start(flags);
    let why = ["gc", "why", "ConfigMap", "default/owner"];
    agent
        .until("all three are being deleted", |agent| {
            run(agent, &why)
                .out
                .contains("All wait for ConfigMap default/last: its deletion")
        })
        .await;
    let text = run(&agent, &why).out;
    for words in [
        "ConfigMap default/owner  uid",
        "waits for ConfigMap default/middle",
        "kubectl get configmaps last -n default -o jsonpath='{.metadata.finalizers}'",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    let uid = owner["metadata"]["uid"].as_str().unwrap();
    let document: Value = serde_json::from_str(&run(&agent, &["gc", "why", uid, "-ojson"]).out).unwrap();
    assert_eq!(document["objects"].as_array().unwrap().len(), 3, "{document}");
    let unknown = run(&agent, &["gc", "why", "ConfigMap", "nowhere"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.err.contains("use its UID"), "{unknown:?}");

    agent
        .until("every kind is seen", |agent| {
            works(agent) && agent.status()["collector"]["notSynced"].is_null()
        })
        .await;
    assert!(
        run(&agent, &["status"])
            .out
            .contains("Collector active; all kinds are synced")
    );

    let answer = http(&addr, "GET /metrics");
    for words in [
        "200 OK",
        "application/openmetrics-text; version=1.0.0",
        "pod_teardown_gc_active 1",
        "pod_teardown_gc_synced 1",
        r#"pod_teardown_gc_kind_objects{group="",resource="configmaps"} 3"#,
        "pod_teardown_gc_objects_deleted_total 2",
    ] {
        assert!(answer.contains(words), "{words} is not in {answer}");
    }
    assert!(http(&addr, "GET /").contains("404 Not Found"));
    assert!(http(&addr, "POST /metrics").contains("405 Method Not Allowed"));
    assert_eq!(agent.terminate().await, Some(0));
}

/// The collector of this agent is active.
fn works(agent: &Agent) -> bool {
    let collector = &agent.status()["collector"];
    collector.is_object() && collector["standby"].is_null()
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_collector_names_the_reason_and_the_active_one() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let (first, _) = collector_flags(&api);
    let mut first = Agent::start(first.with("node-name", "holder"));
    first.until("it works", works).await;
    let (second, addr) = collector_flags(&api);
    let mut second = Agent::start(second);
    second
        .until("it knows who works", |agent| {
            run(agent, &["gc", "why", "Pod", "x"])
                .err
                .contains("ask the agent of node holder")
        })
        .await;
    let status = run(&second, &["status"]).out;
    assert!(status.contains("Collector standby: "), "{status}");
    let answer = http(&addr, "GET /metrics");
    assert!(answer.contains("pod_teardown_gc_active 0"), "{answer}");
    assert_eq!(second.terminate().await, Some(0));
    assert_eq!(first.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_address_in_use_is_an_error_and_check_reports_it() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (flags, addr) = collector_flags_at(&api, &taken);
    let checked = flags.run("check");
    assert!(checked.out.contains("no other process uses"), "{checked:?}");
    let mut agent = Agent::start(flags);
    assert_eq!(agent.wait_for_exit().await, Some(78));
    let log = agent.log();
    assert!(
        log.contains(&format!("--metrics-addr {addr}")) && log.contains("no other process uses"),
        "{log}"
    );

    let (flags, _) = collector_flags(&api);
    // No machine has it: it is kept for examples.
    let output = flags.with("metrics-addr", "192.0.2.1:9464").run("check");
    assert_eq!(output.code, Some(78), "{output:?}");
}
