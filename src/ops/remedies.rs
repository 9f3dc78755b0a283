//! Remedies that both `check` and `status` show.

use jiff::Timestamp;

use crate::api::expiry::expires_soon;

/// Remedy for expiring credentials of a node. kubeadm does not renew a kubelet's client certificate.
pub const RENEW: &str = "start the kubelet (`systemctl start kubelet`) for a while, with a bootstrap kubeconfig if the certificate has \
    expired: it renews its own while it runs; or have a new one signed for system:node:NAME of group system:nodes";
/// Remedy for expiring credentials of the collector.
pub const RENEW_COLLECTORS: &str = "renew what --gc-kubeconfig holds, as deploy/gc-kubeconfig.sh does (pod-teardown-gc-kubeconfig of the package pod-teardown-gc); the agent reads that file again by \
    itself";

/// The expiry of credentials, with this remedy; `None` if it is not near.
pub fn expiry(end: Timestamp, now: Timestamp, renew: &str) -> Option<String> {
    let verb = if end > now { "expire" } else { "have expired" };
    expires_soon(end, now).then(|| format!("the credentials {verb}: {end:.0}; {renew}"))
}
