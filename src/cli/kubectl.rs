//! The command line of `kubectl teardown`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, builder::Styles};

use super::output::OutputFormat;

/// Name of the program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl-teardown";

/// Show from anywhere how pods terminate: what pod-teardown does on each node, and why a pod still exists.
///
/// It reads the API server with your own credentials, and changes nothing. It needs the right to get and list nodes, pods and events;
/// what you may not read is reported as unknown. Agents report their role as the condition PodTeardownActive of their Node.
#[derive(Debug, Parser)]
#[command(name = PLUGIN, bin_name = "kubectl teardown", version, term_width = 100, styles = Styles::plain())]
#[command(
    after_help = "Exit code: 0; 64 the command line is wrong; 1 the kubeconfig is unusable, the API server does not answer, or the \
    object does not exist."
)]
pub struct KubectlCli {
    #[command(subcommand)]
    pub verb: KubectlVerb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum KubectlVerb {
    /// List all nodes: kubelet, agent, and terminating and blocked pods.
    ///
    /// AGENT is the state of the agent: active, standby, observing, blocked, stopped or silent. An active agent terminates the pods of
    /// its node. A blocked one is active, but may not act. A silent one has not reported for 11 minutes. BLOCKED counts terminating
    /// pods for which an agent has sent the event TeardownBlocked.
    #[command(after_help = "Examples:
  # All nodes
  kubectl teardown nodes
  # Names of nodes whose agent is active
  kubectl teardown nodes -o json | jq -r '.[] | select(.agent.state == \"active\") | .name'")]
    Nodes(ClusterFlags),
    Why(PodWhyArgs),
}

/// Explain why a pod still exists, as far as the API shows it.
///
/// Its grace period, the kubelet and the agent of its node, recent events and finalizers, each with a remedy. Processes, mounts and
/// cgroups are seen on the node only: run `pod-teardown why` there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kubectl teardown why -n shop db-0
  kubectl teardown why shop/db-0")]
pub struct PodWhyArgs {
    /// The pod: its name, or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Namespace of the pod [default: that of the kubeconfig's context].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// How to reach the cluster, as for kubectl, and how to print.
#[derive(Debug, Args)]
pub struct ClusterFlags {
    /// Kubeconfig [default: KUBECONFIG, else ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// How to print.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}
