//! DRA claims: unprepared between the last container's exit and the terminal phase, and never while a pod with them runs.

use pod_teardown::model::trace::Obstacle;
use testbed::drivers::{DraCall, DraDriver, DraService};

use crate::prelude::*;

pub const DRIVER: &str = "gpu.example.com";
const OTHER: &str = "nic.example.com";

/// A claim in the kubelet's checkpoint.
pub struct Prepared<'a> {
    pub name: &'a str,
    pub pods: &'a [&'a str],
    pub drivers: &'a [&'a str],
}

const fn gpu<'a>(pods: &'a [&'a str]) -> Prepared<'a> {
    Prepared {
        name: "gpu",
        pods,
        drivers: &[DRIVER],
    }
}

pub fn claim_uid(claim: &str) -> String {
    format!("claim-{claim}")
}

/// Writes the checkpoint as a kubelet does; returns its content.
pub fn checkpoint(node: &Node, claims: &[Prepared<'_>]) -> Vec<u8> {
    let keys =
        |keys: &[&str], value: &Value| -> Value { keys.iter().map(|&key| (key.to_owned(), value.clone())).collect() };
    let claims: Vec<Value> = claims
        .iter()
        .map(|claim| {
            let pods: Vec<_> = claim.pods.iter().map(|name| uid(name)).collect();
            let pods: Vec<_> = pods.iter().map(String::as_str).collect();
            json!({
                "ClaimUID": claim_uid(claim.name), "ClaimName": claim.name, "Namespace": "default",
                "PodUIDs": keys(&pods, &json!({})),
                "DriverState": keys(claim.drivers, &json!({ "Devices": null })),
            })
        })
        .collect();
    write_checkpoint(node, &claims)
}

/// Writes the checkpoint with these claims.
fn write_checkpoint(node: &Node, claims: &[Value]) -> Vec<u8> {
    let data = json!({ "kind": "DRACheckpoint", "ClaimInfoStateList": claims }).to_string();
    let sealed = json!({ "Data": data, "Checksum": crc32fast::hash(data.as_bytes()) }).to_string();
    fs::write(file(node), &sealed).unwrap();
    sealed.into_bytes()
}

fn file(node: &Node) -> std::path::PathBuf {
    node.path("kubelet/dra_manager_state")
}

/// A pod object with these claims.
pub fn claiming(name: &str, claims: &[&str]) -> Value {
    let mut object = pod(name, &plain());
    let claims = claims
        .iter()
        .map(|claim| json!({ "name": claim, "resourceClaimName": claim }));
    object["spec"]["resourceClaims"] = claims.collect();
    object
}

/// A pod with these claims, which exits so many seconds after SIGTERM.
fn claiming_pod(node: &Node, name: &str, claims: &[&str], ends_after: u64) {
    node.insert(claiming(name, claims));
    node.pod_without_object(name, |pod| pod.container("main").ends_after_term(secs(ends_after), 0));
}

fn driver(node: &Node, name: &str) -> DraDriver {
    DraDriver::start(&node.path("kubelet"), name, &[DraService::V1]).unwrap()
}

/// Names of the claims of all calls.
fn asked(driver: &DraDriver) -> Vec<String> {
    let claims = driver.called().into_iter().flat_map(|called| called.call.claims);
    claims.map(|(_, name, _)| name).collect()
}

/// Waits until no container of the pod runs; the API does not show a terminal phase.
async fn waits(node: &Node, name: &str) {
    sleep(secs(300)).await;
    node.cri
        .look(|world| assert!(world.sandboxes.values().any(|it| it.pod_uid == uid(name) && !it.ready)));
    assert_eq!(node.phase(name).await, "Running");
}

#[tokio::test(start_paused = true)]
async fn claim_is_unprepared_after_containers_stop_and_before_the_terminal_phase() {
    let mut node = Node::new().await;
    let driver = driver(&node, DRIVER);
    claiming_pod(&node, "web", &["gpu"], 3);
    let written = checkpoint(&node, &[gpu(&["web"])]);
    driver.behave(Behavior::Slow(secs(10)));
    node.run().await;
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(2)).await;
    assert!(driver.called().is_empty(), "while a container runs");
    wait_until!(!driver.called().is_empty());
    node.cri
        .look(|world| assert!(world.sandboxes.values().all(|sandbox| !sandbox.ready)));
    sleep(secs(9)).await;
    assert_eq!(node.phase("web").await, "Running");
    node.wait_torn_down("web").await;
    let call = DraCall {
        service: DraService::V1,
        claims: vec![("default".into(), "gpu".into(), claim_uid("gpu"))],
    };
    let calls: Vec<_> = driver.called().into_iter().map(|called| called.call).collect();
    assert_eq!(calls, [call]);
    assert_eq!(fs::read(file(&node)).unwrap(), written);
}

#[tokio::test(start_paused = true)]
async fn unreadable_pod_blocks_only_its_own_claims() {
    let mut node = Node::new().await;
    let driver = driver(&node, DRIVER);
    for name in ["web", "db"] {
        claiming_pod(&node, name, &[name], 0);
    }
    let mut odd = claiming("odd", &["db"]);
    odd["metadata"]["annotations"] = 7.into();
    node.insert(odd);
    node.pod_without_object("odd", |pod| pod.container("main"));
    let claim = |name, pods| Prepared {
        name,
        pods,
        drivers: &[DRIVER],
    };
    checkpoint(&node, &[claim("web", &["web"]), claim("db", &["db", "odd"])]);
    node.run().await;
    for name in ["web", "db"] {
        node.delete(name, None).await;
        node.wait_torn_down(name).await;
    }
    assert_eq!(
        asked(&driver),
        ["web"],
        "the other one may be in use by a pod that runs"
    );
}

fn reserved(node: &Node, claim: &str, pods: &[&str]) {
    let reserved = pods
        .iter()
        .map(|name| json!({ "resource": "pods", "name": name, "uid": uid(name) }));
    node.insert(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": claim, "namespace": "default", "uid": claim_uid(claim) },
        "spec": {}, "status": { "reservedFor": reserved.collect::<Value>() },
    }));
}

#[tokio::test(start_paused = true)]
async fn claim_used_by_a_running_pod_is_kept_by_any_evidence() {
    let named = |claim: &str| json!([{ "name": "gpu", claim: "gpu" }]);
    let made = json!({ "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": "gpu" }] });
    let mapping = json!({ "containerName": "main", "requestName": "r", "resourceName": "example.com/gpu" });
    let extended =
        json!({ "extendedResourceClaimStatus": { "resourceClaimName": "gpu", "requestMappings": [mapping] } });
    for (evidence, prepared_for, claims, status, reserved_for) in [
        ("checkpoint", &["web", "db"][..], json!([]), json!({}), &[][..]),
        ("spec", &["web"], named("resourceClaimName"), json!({}), &[]),
        ("reservation", &["web"], json!([]), json!({}), &["web", "db"]),
        (
            "status of a template's claim",
            &["web"],
            named("resourceClaimTemplateName"),
            made,
            &["web"],
        ),
        ("status of extended resources", &["web"], json!([]), extended, &["web"]),
    ] {
        let mut node = Node::new().await;
        let driver = driver(&node, DRIVER);
        claiming_pod(&node, "web", &["gpu"], 0);
        let mut db = pod("db", &plain());
        db["spec"]["resourceClaims"] = claims;
        let fields = status.as_object().unwrap().clone();
        db["status"].as_object_mut().unwrap().extend(fields);
        node.insert(db);
        node.pod_without_object("db", |pod| pod.container("main"));
        reserved(&node, "gpu", reserved_for);
        let written = checkpoint(&node, &[gpu(prepared_for)]);
        node.run().await;
        node.tear_down("web").await;
        sleep(secs(300)).await;
        assert!(driver.called().is_empty(), "{evidence}");
        assert_eq!(fs::read(file(&node)).unwrap(), written, "{evidence}");
        // The last pod has it unprepared.
        checkpoint(&node, &[gpu(&["db"])]);
        node.tear_down("db").await;
        assert_eq!(asked(&driver), ["gpu"], "{evidence}");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_terminating_together_do_not_keep_a_shared_claim() {
    let mut node = Node::new().await;
    let driver = driver(&node, DRIVER);
    for (name, ends_after) in [("web", 2), ("db", 9)] {
        claiming_pod(&node, name, &["gpu"], ends_after);
    }
    reserved(&node, "gpu", &["web", "db"]);
    checkpoint(&node, &[gpu(&["web", "db"])]);
    node.run().await;
    node.delete("web", None).await;
    node.delete("db", None).await;
    node.wait_torn_down("web").await;
    assert!(driver.called().is_empty(), "a container of the other one still runs");
    node.wait_torn_down("db").await;
    assert_eq!(asked(&driver), ["gpu"]);
}

#[tokio::test(start_paused = true)]
async fn runtime_is_not_queried_for_pods_without_the_claim() {
    let mut node = Node::new().await;
    let driver = driver(&node, DRIVER);
    claiming_pod(&node, "web", &["gpu"], 0);
    checkpoint(&node, &[gpu(&["web", "db-0"])]);
    for number in 0..20 {
        node.pod(&format!("db-{number}"), &plain(), |pod| {
            pod.container("main").ignores_term()
        });
    }
    node.run().await;
    for number in 0..20 {
        node.delete(&format!("db-{number}"), None).await;
    }
    node.calls(20, |_| true).await;
    sleep(secs(5)).await;
    let before = node.cri.log().len();
    node.tear_down("web").await;
    assert!(driver.called().is_empty(), "the first of them uses it");
    let log = node.cri.log().split_off(before);
    let lists = log
        .iter()
        .filter(|entry| matches!(entry.call, Logged::Read("ListContainers", _)));
    assert!(lists.count() < 10, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn unreadable_reservation_does_not_count_as_none() {
    let mut node = Node::new().await;
    let driver = driver(&node, DRIVER);
    claiming_pod(&node, "web", &["gpu"], 0);
    claiming_pod(&node, "db", &[], 0);
    reserved(&node, "gpu", &["db"]);
    checkpoint(&node, &[gpu(&["web"])]);
    node.run().await;
    inject_fault(&node, Fault::status(500).resource("resourceclaims").times(3));
    node.delete("web", None).await;
    node.wait_blocked("web", "resourceclaims").await;
    node.wait_torn_down("web").await;
    assert!(driver.called().is_empty());
}

#[tokio::test(start_paused = true)]
async fn deleted_or_forbidden_claim_is_unprepared() {
    for code in [403, 404] {
        let mut node = Node::new().await;
        let driver = driver(&node, DRIVER);
        claiming_pod(&node, "web", &["gpu"], 0);
        checkpoint(&node, &[gpu(&["web"])]);
        node.run().await;
        inject_fault(&node, Fault::status(code).resource("resourceclaims"));
        node.tear_down("web").await;
        assert_eq!(asked(&driver), ["gpu"], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_dra_driver_blocks_its_pod_and_not_claims_of_other_drivers() {
    for trouble in [
        "refuses",
        "hangs",
        "is gone",
        "passes the claim over",
        "fails for the claim",
    ] {
        let mut node = Node::new().await;
        let (bad, good) = (driver(&node, DRIVER), driver(&node, OTHER));
        claiming_pod(&node, "web", &["gpu", "nic"], 0);
        let nic = Prepared {
            name: "nic",
            pods: &["web"],
            drivers: &[OTHER],
        };
        let written = checkpoint(&node, &[gpu(&["web"]), nic]);
        let words = match trouble {
            "refuses" => {
                bad.behave(Behavior::Fails(Code::Internal, "device is busy".to_owned()));
                "device is busy"
            }
            "hangs" => {
                bad.behave(Behavior::Hangs);
                "45"
            }
            "is gone" => {
                bad.crash().await;
                "not available on this node"
            }
            "fails for the claim" => {
                bad.fails_for(&claim_uid("gpu"), "the device fell off the bus");
                "fell off the bus"
            }
            _ => {
                bad.passes_over(&claim_uid("gpu"));
                "the driver's answer lacks it"
            }
        };
        node.run().await;
        node.delete("web", None).await;
        node.wait_blocked("web", words).await;
        let blocked = node.trace("web").await.unwrap().blocked;
        let of_driver = |it: &Obstacle| (it.step, &*it.target) == (Some(Step::Devices), "gpu.example.com");
        assert!(blocked.iter().all(of_driver), "{trouble}: {blocked:?}");
        assert!(blocked[0].retry_at.is_some(), "{trouble}: {blocked:?}");
        waits(&node, "web").await;
        assert!(asked(&good).contains(&"nic".to_owned()), "{trouble}");
        if trouble == "is gone" {
            bad.come_back().unwrap();
        }
        if matches!(trouble, "passes the claim over" | "fails for the claim") {
            drop(bad);
            let _other = driver(&node, DRIVER);
            node.wait_torn_down("web").await;
        } else {
            bad.behave(Behavior::Well);
            node.wait_torn_down("web").await;
        }
        assert_eq!(fs::read(file(&node)).unwrap(), written, "{trouble}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_failed_call_keeps_a_claim_shared_with_a_running_pod() {
    let log = Log::new();
    let mut node = Node::new().await;
    let (shared, own) = (driver(&node, DRIVER), driver(&node, OTHER));
    claiming_pod(&node, "web", &["gpu", "nic"], 0);
    claiming_pod(&node, "db", &["gpu"], 0);
    let nic = Prepared {
        name: "nic",
        pods: &["web"],
        drivers: &[OTHER, DRIVER],
    };
    checkpoint(&node, &[gpu(&["web", "db"]), nic]);
    own.behave_for(3, Behavior::Fails(Code::Unavailable, "not yet".to_owned()));
    node.run().await;
    node.tear_down("web").await;
    assert_eq!(asked(&own), ["nic"; 4]);
    assert_eq!(asked(&shared), ["nic"; 4]);
    assert_eq!(log.lines("Another pod uses the claim").len(), 1, "not on each try");
    assert_eq!(node.phase("db").await, "Running");
}

#[tokio::test(start_paused = true)]
async fn pod_that_only_a_wrong_runtime_reports_running_keeps_no_shared_claim() {
    let mut node = Node::new().await;
    let shared = driver(&node, DRIVER);
    for (name, pid) in [("web", 4242), ("db", 4243)] {
        node.insert(claiming(name, &["gpu"]));
        node.pod_without_object(name, |pod| pod.container("main").process(pid));
    }
    node.cri.change(|world| world.kill_shim("container-uid-web-main-0"));
    checkpoint(&node, &[gpu(&["web", "db"])]);
    node.run().await;
    node.delete("web", Some(1)).await;
    node.wait_deleted("web").await;
    assert!(shared.called().is_empty(), "while db runs");
    node.cri
        .look(|world| assert!(world.container("container-uid-web-main-0").is_some()));
    node.delete("db", Some(1)).await;
    node.wait_torn_down("db").await;
    assert_eq!(asked(&shared), ["gpu"]);
    node.crash().await;
}

#[tokio::test(start_paused = true)]
async fn damaged_checkpoint_blocks_pods_with_claims_and_names_the_remedy() {
    for damage in ["checksum", "torn", "empty"] {
        let mut node = Node::new().await;
        let driver = driver(&node, DRIVER);
        claiming_pod(&node, "web", &["gpu"], 0);
        node.simple_pod("db");
        let whole = checkpoint(&node, &[gpu(&["web"])]);
        let damaged = match damage {
            "checksum" => String::from_utf8(whole.clone())
                .unwrap()
                .replace("claim-gpu", "claim-gpv")
                .into_bytes(),
            "torn" => whole[..whole.len() / 2].to_vec(),
            _ => Vec::new(),
        };
        fs::write(file(&node), &damaged).unwrap();
        node.run().await;
        node.delete("web", None).await;
        node.delete("db", None).await;
        node.wait_blocked("web", "dra_manager_state").await;
        let failure = node.trace("web").await.unwrap().blocked.remove(0).message;
        let path = file(&node).display().to_string();
        assert!(failure.contains("moved away") && failure.contains(&path), "{failure}");
        waits(&node, "web").await;
        // A pod without claims is not affected.
        node.wait_torn_down("db").await;
        assert!(driver.called().is_empty(), "{damage}");
        assert_eq!(fs::read(file(&node)).unwrap(), damaged, "{damage}");
        fs::rename(file(&node), node.path("aside")).unwrap();
        node.wait_torn_down("web").await;
    }
}

/// A finished pod whose object stays.
async fn kept(node: &mut Node) -> DraDriver {
    let driver = driver(node, DRIVER);
    claiming_pod(node, "job", &["gpu"], 0);
    let mut over = claiming("job", &["gpu"]);
    over["status"]["phase"] = "Succeeded".into();
    node.insert(over);
    checkpoint(node, &[gpu(&["job"])]);
    node.run().await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
    assert_eq!(asked(&driver), ["gpu"]);
    driver
}

#[tokio::test(start_paused = true)]
async fn pod_with_unprepared_claims_needs_no_driver() {
    for restarted in [false, true] {
        let mut node = Node::new().await;
        kept(&mut node).await.crash().await;
        if restarted {
            node.restart().await;
        }
        node.tear_down("job").await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_claims_that_the_checkpoint_assigns_to_the_pod_are_unprepared() {
    for (what, spec, prepared_for, expected) in [
        ("the spec names more", &["gpu", "nic"][..], &["web"][..], &["gpu"][..]),
        ("the spec names none", &[], &["web"], &["gpu"]),
        ("it was prepared for no pod", &["gpu"], &[], &[]),
    ] {
        let mut node = Node::new().await;
        let driver = driver(&node, DRIVER);
        claiming_pod(&node, "web", spec, 0);
        let nic = Prepared {
            name: "nic",
            pods: &["gone"],
            drivers: &[DRIVER],
        };
        checkpoint(&node, &[gpu(prepared_for), nic]);
        node.run().await;
        node.tear_down("web").await;
        assert_eq!(asked(&driver), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn driver_whose_devices_all_skip_the_operation_is_neither_called_nor_needed() {
    for (skipped, is_called) in [
        (json!(["NodeUnprepareResources"]), false),
        (json!(["*"]), false),
        (json!(["NodePrepareResources"]), true),
        (json!(null), true),
    ] {
        let mut node = Node::new().await;
        let present = is_called.then(|| driver(&node, DRIVER));
        claiming_pod(&node, "web", &["gpu"], 0);
        let claim = json!({
            "ClaimUID": claim_uid("gpu"), "ClaimName": "gpu", "Namespace": "default", "PodUIDs": { uid("web"): {} },
            "DriverState": { DRIVER: { "Devices": null, "skipNodeOperations": skipped } },
        });
        write_checkpoint(&node, &[claim]);
        node.run().await;
        node.tear_down("web").await;
        assert_eq!(
            present.map_or(0, |driver| asked(&driver).len()),
            usize::from(is_called),
            "{skipped}"
        );
    }
}
