//! `kubectl teardown`: reads the API server with the user's credentials.

use std::{env, path::PathBuf, process::ExitCode};

use clap::Parser as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Api, Client};
use pod_teardown::{
    cli::{
        OutputFormat,
        kubectl::{ClusterFlags, KubectlCli, KubectlVerb, PLUGIN, PodWhyArgs},
        parse_pod_name,
    },
    cluster_view::{
        nodes, pod,
        read::{self, ReadError, list},
    },
    explanation::Explanation,
};

use crate::print::{USAGE, failed, print_clap_error, print_error, print_value};

/// Whether the program was called as a plugin of kubectl.
pub fn is_plugin() -> bool {
    let name = env::args_os().next().map(PathBuf::from);
    name.is_some_and(|path| path.file_name().is_some_and(|name| name == PLUGIN))
}

/// Runs the command line of `kubectl teardown`.
pub async fn run() -> ExitCode {
    let cli = match KubectlCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            print_clap_error(&error);
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let shown = match cli.verb {
        KubectlVerb::Nodes(cluster) => show_nodes(&cluster).await,
        KubectlVerb::Why(arguments) => explain(&arguments).await,
    };
    shown.unwrap_or_else(|error| failed(1, &error.to_string()))
}

async fn client(flags: &ClusterFlags) -> Result<Client, ReadError> {
    read::client(flags.kubeconfig.as_deref(), flags.context.clone()).await
}

async fn show_nodes(flags: &ClusterFlags) -> Result<ExitCode, ReadError> {
    let client = client(flags).await?;
    let (nodes, pods) = (Api::<Node>::all(client.clone()), Api::<Pod>::all(client.clone()));
    let events = Api::<Event>::all(client);
    let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let (nodes, pods, events) = tokio::join!(
        list("nodes", &nodes, "", |_| true),
        list("pods", &pods, "", is_deleted),
        list("events", &events, "reason=TeardownBlocked", |_| true),
    );
    let (now, is_wide) = (Timestamp::now(), flags.output == OutputFormat::Wide);
    let lines = nodes::nodes(
        &nodes?,
        pods.as_ref().ok().map(Vec::as_slice),
        events.as_ref().ok().map(Vec::as_slice),
        now,
    );
    let text = |lines: &Vec<_>| nodes::text(lines, is_wide, now);
    let code = print_value(&lines, flags.output == OutputFormat::Json, text, 0);
    for why in [pods.err(), events.err()].into_iter().flatten() {
        print_error(&format!("{why}; counts are shown as ?"));
    }
    Ok(code)
}

async fn explain(
    PodWhyArgs {
        pod,
        namespace,
        cluster,
    }: &PodWhyArgs,
) -> Result<ExitCode, ReadError> {
    let client = client(cluster).await?;
    let (namespace, name) = match parse_pod_name(pod, namespace.as_deref(), client.default_namespace()) {
        Ok(name) => name,
        Err(why) => return Ok(failed(USAGE, &why)),
    };
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let object = read::get(&format!("pod {namespace}/{name}"), pods.get(&name)).await?;
    let why = pod::explain(&object, &read::surroundings(&client, &object).await, Timestamp::now());
    let is_json = cluster.output == OutputFormat::Json;
    Ok(print_value(&why, is_json, Explanation::text, 0))
}
