//! Completes failures: what their steps wait for beyond what they name, and the pods of the processes that they name.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::timeout;

use super::Worker;
use crate::{
    model::{failure::Failure, pod::PodView, trace::Step, waits_for::WaitsFor},
    node::process_pod::pod_of,
    teardown::locate,
};

/// Where network plugins are configured, unless the runtime reports another directory. Without a configuration the runtime cannot
/// take a sandbox's network down.
pub(super) const NETWORK_CONFIGURATION: &str = "/etc/cni/net.d";
/// Longest wait for the runtime's configuration.
const READ_LIMIT: Duration = Duration::from_secs(2);

impl Worker {
    /// Adds the mounts of the pod's volumes, a runtime that starts again, and the network's plugins.
    pub(super) async fn complete(&self, view: &PodView, failures: Vec<Failure>) -> Vec<Failure> {
        let is_of_network = |failure: &Failure| matches!(failure.step, Step::Sandbox | Step::Cleanup);
        let network = match failures.iter().any(is_of_network) {
            true => timeout(READ_LIMIT, self.context.node.cri.network_directories()).await,
            false => Ok(None),
        };
        let network = network
            .ok()
            .flatten()
            .unwrap_or_else(|| vec![NETWORK_CONFIGURATION.into()]);
        let volumes = locate::pod_dir(&self.context, view).map(|dir| dir.path().to_owned());
        let pods = self.pods_of_processes(&failures).await;
        let complete = |mut failure: Failure| {
            for pid in failure.waits_for.iter().filter_map(WaitsFor::pid) {
                if let Some(pod) = pods.get(&pid) {
                    failure.cause += &format!("; process {pid} belongs to pod {pod}");
                }
            }
            let step = failure.step;
            let socket = self.context.node.cri.socket().map(ToOwned::to_owned);
            let socket = socket.filter(|_| !matches!(step, Step::Status | Step::Delete));
            let network = if is_of_network(&failure) {
                network.clone()
            } else {
                Vec::new()
            };
            let volumes = volumes.as_ref().ok().filter(|_| step == Step::Volumes).cloned();
            let paths = socket.into_iter().chain(network).map(WaitsFor::Path);
            failure.waiting_for(volumes.map(WaitsFor::Mounts).into_iter().chain(paths))
        };
        failures.into_iter().map(complete).collect()
    }

    /// The pods of the named processes.
    async fn pods_of_processes(&self, failures: &[Failure]) -> BTreeMap<i32, String> {
        let waits_for = failures.iter().flat_map(|failure| &failure.waits_for);
        let pids: Vec<_> = waits_for.filter_map(WaitsFor::pid).collect();
        if pids.is_empty() {
            return BTreeMap::new();
        }
        let node = &self.context.node;
        let (proc, logs) = (node.storage.proc.clone(), node.pod_logs_dir.clone());
        let pods = move || {
            let pods = pids
                .into_iter()
                .filter_map(|pid| Some((pid, pod_of(&proc, &logs, pid)?)));
            pods.collect()
        };
        node.reads.run_blocking(pods).await.unwrap_or_default()
    }
}
