//! Reads a kubeconfig and the files that it names.

use std::path::{Path, PathBuf};

use super::document::{DocumentKind, is_absent};
use crate::{
    api::kubeconfig::{credential_files, read_kubeconfig},
    model::problem::Problem,
};

/// Where kubeconfigs of kubelets are.
const EXAMPLES: &str =
    "such as /etc/kubernetes/kubelet.conf (kubeadm) or /var/lib/kubelet/kubeconfig (EKS, GKE, OpenShift)";

pub(super) async fn kubeconfig(flag: &str, path: Option<&Path>) -> Result<(kube::Config, PathBuf), Problem> {
    let Some(path) = path else {
        return Err(Problem::configuration(
            format!(
                "{flag} is missing: neither a running kubelet nor the files of a known distribution were found on this node"
            ),
            &format!(
                "set {flag} to the kubelet's kubeconfig, {EXAMPLES}; to check with the service's settings, run \
                 `pod-teardown check --service`"
            ),
        ));
    };
    let config = read_kubeconfig(path).await;
    let kind = DocumentKind::of_file(path).filter(|kind| !kind.is_kubeconfig());
    if let Some(kind) = kind {
        return Err(Problem::configuration(
            format!("{flag} {}: this file is {kind}, not a kubeconfig", path.display()),
            &format!("set {flag} to a kubeconfig, {EXAMPLES}"),
        ));
    }
    let config = config.map_err(|error| {
        Problem::configuration(
            format!("{flag} {}: {error}", path.display()),
            "check that the file is a kubeconfig, and that root can read it and the certificates and tokens that it names",
        )
        .absent(credential_files(path).iter().any(|file| is_absent(file)))
    })?;
    Ok((config, path.to_owned()))
}
