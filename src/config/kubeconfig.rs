//! Reads a kubeconfig and the files that it names.

use std::path::{Path, PathBuf};

use super::files::is_absent;
use crate::{
    api::kubeconfig::{credential_files, read_kubeconfig},
    model::problem::Problem,
};

pub(super) async fn kubeconfig(flag: &str, path: Option<&Path>) -> Result<(kube::Config, PathBuf), Problem> {
    let Some(path) = path else {
        return Err(Problem::not_given(
            format!("{flag} is missing, and neither a running kubelet nor the files of a known distribution are here"),
            "name a kubeconfig, such as the kubelet's own: --kubeconfig /etc/kubernetes/kubelet.conf; the service has its \
             settings elsewhere: the head of /etc/default/pod-teardown says how to check with them",
        ));
    };
    let config = read_kubeconfig(path).await.map_err(|error| {
        Problem::configuration(
            format!("{flag} {}: {error}", path.display()),
            "check that it is a kubeconfig, and that the certificates and tokens it points to are there and readable, as they mostly are for root alone",
        )
        .absent(credential_files(path).iter().any(|file| is_absent(file)))
    })?;
    Ok((config, path.to_owned()))
}
