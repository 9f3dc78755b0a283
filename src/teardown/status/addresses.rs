//! The pod's addresses, from the runtime or else from the API.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodIP, PodStatus};

use super::input::StatusInput;
use crate::node::cri::types::SandboxState;

/// `podIP` and `podIPs`.
///
/// The kubelet removes them if it restarts after the sandbox was removed. Here they stay: no other pod may have them while this
/// one is found by them.
pub(super) fn pod_addresses(input: &StatusInput<'_>, api: &PodStatus) -> (Option<String>, Option<Vec<PodIP>>) {
    let mut ips = from_runtime(input, api);
    if ips.is_empty() && api.pod_ip.as_deref().unwrap_or_default().is_empty() && uses_host_network(input) {
        ips = host_addresses(api);
    }
    match ips.first() {
        Some(first) => (
            Some(first.clone()),
            Some(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        ),
        None => (api.pod_ip.clone(), api.pod_ips.clone()),
    }
}

/// At most one address of each family, the node's family first, in canonical form (`sortPodIPs`). Only the newest sandbox counts,
/// and only while it is ready.
fn from_runtime(input: &StatusInput<'_>, api: &PodStatus) -> Vec<String> {
    let newest = input
        .observed
        .sandboxes
        .first()
        .filter(|sandbox| sandbox.state == SandboxState::Ready);
    let known: Vec<IpAddr> = newest
        .iter()
        .flat_map(|sandbox| &sandbox.ips)
        .filter_map(|ip| parse(ip))
        .collect();
    let node_is_v6 = api.host_ip.as_deref().and_then(parse).is_some_and(|ip| ip.is_ipv6());
    let first_of = |v6: bool| known.iter().find(move |ip| ip.is_ipv6() == v6).map(IpAddr::to_string);
    [first_of(node_is_v6), first_of(!node_is_v6)]
        .into_iter()
        .flatten()
        .collect()
}

/// A pod with host network has the host's addresses.
fn host_addresses(api: &PodStatus) -> Vec<String> {
    let first = api.host_ip.iter().filter(|ip| !ip.is_empty()).cloned();
    let all = api.host_ips.iter().flatten().map(|host| host.ip.clone());
    let mut ips: Vec<String> = Vec::new();
    for ip in first.chain(all) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips.truncate(2);
    ips
}

pub(super) fn uses_host_network(input: &StatusInput<'_>) -> bool {
    input
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.host_network)
        .unwrap_or(false)
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}
