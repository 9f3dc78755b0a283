//! Messages, times and addresses of the status.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{HostIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::{
    node::cri::types::{Container, SandboxState},
    teardown::status::{Messages, StatusStage},
};
fn message(case: &Case) -> Option<String> {
    case.entry(StatusStage::Stopped).state?.terminated?.message
}

fn ips(status: &PodStatus) -> (Option<&str>, Vec<&str>) {
    (
        status.pod_ip.as_deref(),
        status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect(),
    )
}

#[test]
fn containers_message_follows_the_runtimes() {
    for (runtime, own, expected) in [
        ("", None, None),
        ("", Some("own"), Some("own")),
        ("runtime", None, Some("runtime")),
        ("runtime", Some("own"), Some("runtime: own")),
    ] {
        let mut case = Case::new(
            mk_pod([mk_container("a")]),
            [Container {
                message: runtime.into(),
                ..exited("a", 1)
            }],
        );
        case.messages = Messages::from_iter(own.map(|own| ("a-0", own)));
        assert_eq!(message(&case).as_deref(), expected);
    }
}

#[test]
fn messages_of_a_pod_share_12_kib_and_no_character_is_split() {
    let mk = |containers: usize, text: &str| {
        let names: Vec<String> = (0..containers).map(|i| format!("c{i}")).collect();
        let mut case = Case::new(mk_pod(names.iter().map(|name| mk_container(name))), [exited("c0", 1)]);
        case.messages = Messages::from_iter([("c0-0", text)]);
        message(&case).unwrap()
    };
    assert_eq!(mk(1, &"x".repeat(20_000)).len(), 12_288);
    assert_eq!(mk(4, &"x".repeat(20_000)).len(), 3072);
    assert_eq!(mk(1, &"€".repeat(20_000)), "€".repeat(4096));
    assert_eq!(
        mk(4, &format!("x{}", "€".repeat(20_000))),
        format!("x{}", "€".repeat(1023))
    );
}

#[test]
fn times_are_whole_seconds() {
    let odd = SignedDuration::from_millis(999);
    let instance = Container {
        finished_at: Some(at(20) + odd),
        started_at: Some(at(10) + odd),
        ..exited("a", 0)
    };
    let mut case = Case::new(mk_pod([mk_container("a")]), [instance]);
    case.pod.status.as_mut().unwrap().start_time = Some(Time(at(0) + odd));
    let status = case.generate(StatusStage::Stopped);
    assert_eq!(status.start_time, Some(Time(at(0))));
    assert_eq!(case.entry(StatusStage::Stopped).state, Some(terminated(end_of("a", 0))));
    for stage in STAGES {
        let facts = crate::teardown::status::StatusInput {
            now: now() + odd,
            ..case.facts(stage)
        };
        let conditions = crate::teardown::status::generate(&facts).conditions.unwrap();
        assert!(
            conditions
                .iter()
                .all(|condition| condition.last_transition_time == Some(Time(now())))
        );
    }
}

#[test]
fn addresses_come_from_the_newest_ready_sandbox_the_nodes_family_first() {
    let mut case = Case::new(mk_pod([mk_container("a")]), [running("a")]);
    case.observed.sandboxes[0].ips = ["junk", "fd00:0::0007", "10.0.0.8", "10.0.0.9", "fd00::9"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(
        ips(&case.generate(StatusStage::Terminating)),
        (Some("10.0.0.8"), vec!["10.0.0.8", "fd00::7"])
    );
    case.pod.status.as_mut().unwrap().host_ip = Some("fd01::1".into());
    assert_eq!(
        ips(&case.generate(StatusStage::Terminating)),
        (Some("fd00::7"), vec!["fd00::7", "10.0.0.8"])
    );
}

#[test]
fn the_address_stays_when_the_runtime_has_none() {
    let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    case.observed.sandboxes[0].state = SandboxState::NotReady;
    assert_eq!(case.generate(StatusStage::Stopped).pod_ip.as_deref(), Some("10.0.0.7"));
    case.observed.sandboxes.clear();
    assert_eq!(
        case.generate(StatusStage::Terminated).pod_ip.as_deref(),
        Some("10.0.0.7")
    );
}

#[test]
fn a_pod_on_the_hosts_network_has_the_hosts_addresses() {
    let pod = with_status(mk_pod([mk_container("a")]), |status| {
        status.pod_ip = None;
        status.host_ips = Some(["192.168.0.1", "fd01::1"].map(|ip| HostIP { ip: ip.into() }).to_vec());
    });
    let mut case = Case::new(with_spec(pod, |spec| spec.host_network = Some(true)), [running("a")]);
    case.observed.sandboxes[0].ips.clear();
    let status = case.generate(StatusStage::Terminating);
    assert_eq!(ips(&status), (Some("192.168.0.1"), vec!["192.168.0.1", "fd01::1"]));
}

#[test]
fn foreign_fields_stay_unchanged() {
    let foreign = PodStatus {
        host_ip: Some("192.168.0.1".into()),
        nominated_node_name: Some("elsewhere".into()),
        qos_class: Some("Burstable".into()),
        resize: Some("Deferred".into()),
        resource_claim_statuses: Some(vec![Default::default()]),
        extended_resource_claim_status: Some(Default::default()),
        node_allocatable_resource_claim_statuses: Some(vec![Default::default()]),
        resources: Some(Default::default()),
        allocated_resources: Some(Default::default()),
        ..Default::default()
    };
    let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    case.pod.status = Some(foreign.clone());
    let status = case.generate(StatusStage::Stopped);
    let kept = PodStatus {
        host_ip: status.host_ip,
        nominated_node_name: status.nominated_node_name,
        qos_class: status.qos_class,
        resize: status.resize,
        resource_claim_statuses: status.resource_claim_statuses,
        extended_resource_claim_status: status.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses: status.node_allocatable_resource_claim_statuses,
        resources: status.resources,
        allocated_resources: status.allocated_resources,
        ..Default::default()
    };
    assert_eq!(kept, foreign);
}
