//! `check`: reports what would prevent the agent from working, without changes.

use std::{collections::BTreeSet, io::ErrorKind, net::SocketAddr, path::Path, sync::Arc};

use super::{metrics, remedies::RENEW};
use crate::{
    api::ApiClient,
    cli::NodeFlags,
    config::{self, PodSettings, Settings, layout},
    model::problems,
    node::{
        cri::Cri,
        effects::Effects,
        host::PROC,
        identity::Identity,
        lock::{DirLock, LockError},
    },
};

mod collector;
mod item;
mod node;
mod report;
mod row;
mod server;

pub use collector::collector_rights;
use collector::for_collector;
pub use item::{Group, Item};
use node::{journal, other_processes, runtime, socket};
pub use report::Report;
pub use row::{CONFIGURATION, FAILURE, Row, UNAVAILABLE, USAGE, Verdict, exit_code, most_severe};
use server::{credentials, server};

/// Validates the flags, and checks everything that the agent needs.
pub async fn check(flags: &NodeFlags, unknown_variables: &BTreeSet<String>) -> Report {
    let flags = layout::complete_flags(flags, Path::new("/"), Path::new(PROC));
    let mut rows = match config::validate(&flags).await {
        Ok(settings) => run(settings).await,
        Err(problems) => problems
            .iter()
            .map(|it| Row::from_problem(Item::SETTINGS, it))
            .collect(),
    };
    rows.extend(unknown_variables.iter().map(|name| {
        Row::new(
            Item::ENVIRONMENT,
            Verdict::Warning,
            format!("{name} is not a setting of this agent, and has no effect"),
            "correct its name: `pod-teardown run --help` lists all settings",
        )
    }));
    Report::new(rows)
}

/// Checks everything that the agent needs.
async fn run(settings: Settings) -> Vec<Row> {
    let mut rows = vec![Row::ok(Item::SETTINGS, summary(&settings))];
    match &settings.pods {
        Some(pods) => rows.extend(for_pods(&settings, pods).await),
        None => {
            let why = "this agent takes no pods down: --mode never";
            rows.push(Row::skipped(Item::RUNTIME, why));
            rows.push(socket(&settings.socket, false).await);
        }
    }
    rows.push(match settings.metrics {
        Some(addr) => metrics_addr(addr),
        None => Row::skipped(Item::METRICS_ADDRESS, "--metrics-addr is not set"),
    });
    match &settings.gc {
        Some(gc) => rows.extend(for_collector(gc).await),
        None => rows.push(Row::skipped(
            Item::COLLECTOR_CREDENTIALS,
            "this agent does not collect: no --gc-kubeconfig, or --gc never",
        )),
    }
    rows
}

/// The settings that decide what the agent connects to, for a user who did not set them.
fn summary(settings: &Settings) -> String {
    let mut parts = Vec::new();
    if let Some(pods) = &settings.pods {
        parts.push(format!("Node {}", settings.node_name));
        parts.push(format!("kubeconfig {}", pods.kubeconfig.display()));
        parts.push(format!("runtime {}", pods.cri_endpoint));
        parts.push(format!("kubelet root {}", pods.kubelet_root.given().display()));
        if pods.only_observes {
            parts.push("only observing (--mode observe)".to_owned());
        }
    }
    if let Some(gc) = &settings.gc {
        parts.push(format!("collector's kubeconfig {}", gc.kubeconfig.display()));
    }
    parts.join(", ")
}

fn metrics_addr(addr: SocketAddr) -> Row {
    const WHAT: Item = Item::METRICS_ADDRESS;
    match metrics::listen(addr) {
        Ok(_) => Row::ok(WHAT, format!("can listen on {addr}")),
        Err(error) => {
            let row = Row::from_problem(WHAT, &problems::metrics_addr(addr, &error));
            match error.kind() {
                // The agent itself may use it.
                ErrorKind::AddrInUse => row.with_verdict(Verdict::Warning),
                _ => row,
            }
        }
    }
}

async fn for_pods(settings: &Settings, pods: &PodSettings) -> Vec<Row> {
    let effects = Effects::none();
    let machine = Identity::read(Path::new("/"));
    let lock = DirLock::acquire(pods.kubelet_root.pods(), Path::new("/")).map(drop);
    let agent_runs = matches!(lock, Err(LockError::Taken { .. }));
    let (mut state_rows, recorded) = journal(&settings.state_dir, &machine, agent_runs);
    state_rows.push(socket(&settings.socket, agent_runs).await);
    let credentials = credentials(Item::CREDENTIALS, "--kubeconfig", RENEW, &pods.kube);
    let mut rows = Vec::from_iter(credentials);
    match ApiClient::new(
        &pods.kube,
        pods.kubeconfig.clone(),
        effects.clone(),
        // The identity of the Node is checked below.
        (&settings.node_name, Arc::new(|_| Box::pin(async { Ok(()) }))),
        None,
    ) {
        Ok(api) => {
            rows.extend(server(&api, pods, &settings.node_name, &machine, recorded.as_deref()).await);
        }
        Err(error) => {
            let problem = problems::api_client("--kubeconfig", &error);
            rows.push(Row::from_problem(Item::API_SERVER, &problem));
        }
    }
    let cri = Cri::new(&pods.cri_endpoint, effects);
    rows.extend(runtime(&cri, pods).await);
    rows.extend(state_rows);
    rows.extend(other_processes(pods, &settings.node_name, lock).await);
    rows
}
