//! `kubectl teardown`: reads the API server with the user's credentials.

use std::{env, path::PathBuf, process::ExitCode};

use clap::Parser as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use pod_teardown::{
    cli::{
        kubectl::{ClusterFlags, KubectlCli, KubectlVerb, PLUGIN, PodWhyArgs},
        parse_pod_name,
    },
    cluster_view::{
        nodes, pod,
        read::{client, get, list, surroundings},
    },
};

use crate::print::{print_clap_error, print_error, print_value};

/// Whether the program was called as a plugin of kubectl.
pub fn is_plugin() -> bool {
    let name = env::args_os().next().map(PathBuf::from);
    name.is_some_and(|path| path.file_name().is_some_and(|name| name == PLUGIN))
}

/// Runs the command line of `kubectl teardown`.
pub async fn run() -> anyhow::Result<ExitCode> {
    let cli = match KubectlCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return Ok(print_clap_error(&error).into()),
    };
    match cli.verb {
        KubectlVerb::Nodes(cluster) => show_nodes(&cluster).await?,
        KubectlVerb::Why(arguments) => explain(&arguments).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show_nodes(flags: &ClusterFlags) -> anyhow::Result<()> {
    let client = client(flags).await?;
    let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::all(client.clone()));
    let events = Api::<Event>::all(client);
    let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let (nodes, pods, events) = tokio::join!(
        list("nodes", &nodes, "", |_| true),
        list("pods", &pods, "", is_deleted),
        list("events", &events, "reason=TeardownBlocked", |_| true),
    );
    let now = Timestamp::now();
    let lines = nodes::nodes(
        &nodes?,
        pods.as_ref().ok().map(Vec::as_slice),
        events.as_ref().ok().map(Vec::as_slice),
        now,
    );
    let text = |lines: &Vec<_>, is_wide| nodes::text(lines, is_wide, now);
    let printed = print_value(&lines, flags.output, text);
    for why in [pods.err(), events.err()].into_iter().flatten() {
        print_error(&format!("{why}; counts are shown as ?"));
    }
    printed
}

async fn explain(arguments: &PodWhyArgs) -> anyhow::Result<()> {
    let client = client(&arguments.cluster).await?;
    let (flag, default) = (arguments.namespace.as_deref(), client.default_namespace());
    let (namespace, name) = parse_pod_name(&arguments.pod, flag, default)?;
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let object = get(&format!("pod {namespace}/{name}"), pods.get(&name)).await?;
    let why = pod::explain(&object, &surroundings(&client, &object).await, Timestamp::now());
    print_value(&why, arguments.cluster.output, |why, _| why.text())
}
