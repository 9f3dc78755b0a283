//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

mod check;
mod control;
mod gc;
pub mod kubectl;
mod node;
mod object;
mod output;
mod pod;
mod read;
mod report;
mod service;
mod status;
mod stop;
mod values;

pub use check::CheckArgs;
pub use control::{ApproveArgs, HandoverArgs, PauseArgs, ResumeArgs};
pub use gc::{GcVerb, GcWhyArgs, GraphArgs};
pub use node::NodeFlags;
pub use object::{ObjectArg, OptionalPodArg, PodArg, PodId, PodName};
pub use output::{
    DEFAULT_SOCKET, GraphFormat, OutputFormat, PlainFormat, PlainQueryFlags, QueryFlags, SocketFlag, TimelineFormat,
};
pub use pod::{PlanArgs, TimelineArgs, WhyArgs};
pub use read::Read;
pub use report::ReportArgs;
pub use service::ServiceSettings;
pub use status::StatusArgs;
pub use stop::StopArgs;
pub use values::MAX_PAUSE;
pub use values::{CgroupDriverFlag, ForceUnmountFlag, GcFlag, ModeFlag};

/// Terminates Kubernetes pods as the kubelet does, directly against the container runtime, and collects garbage.
///
/// The agent runs beside the kubelet of a node. When the kubelet is down, it finishes the termination of deleted pods: preStop
/// hooks, containers, sandbox, volumes, cgroup, status, and last the API object. Each step is verified before the next one.
/// Pods that are not deleted keep running. With --gc-kubeconfig the agent also deletes objects in the whole cluster whose
/// owners are deleted, while the garbage collector of kube-controller-manager is not active.
///
/// The commands that query the agent need root; check needs it for complete results. Start with check.
#[derive(Debug, Parser)]
#[command(name = "pod-teardown", version, term_width = 100)]
#[command(
    after_help = "Exit code: 0 success; 64 the command line is wrong; 78 the configuration is wrong; 1 any other error; \
    check has a few more."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "where a verb has no comment, its arguments have the help")]
pub enum Verb {
    /// Run the agent of this node, in the foreground.
    ///
    /// While a kubelet works on this node's pods, or the Node in the API is not this machine, the agent touches nothing, and
    /// reports the reason. It waits for an API server or runtime that cannot be reached.
    #[command(after_help = "Examples:
  # Run the agent with the kubelet's credentials: it acts while the kubelet is down
  pod-teardown run --mode auto --kubeconfig /etc/kubernetes/kubelet.conf --node-name worker-1 \\
    --kubelet-config /var/lib/kubelet/config.yaml
  # Only observe the kubelet, and change nothing
  pod-teardown run --mode observe

Exit code: 0 it was stopped; 64 the command line is wrong; 78 the configuration is wrong; 1 any other error, also that another \
agent runs on this node.")]
    Run(NodeFlags),
    Check(CheckArgs),
    Status(StatusArgs),
    Timeline(TimelineArgs),
    Why(WhyArgs),
    Plan(PlanArgs),
    Report(ReportArgs),
    Stop(StopArgs),
    /// Show the safety holds: what the agent does only after an approval, since when, why, and the effect of an approval.
    ///
    /// node-uid blocks everything: the Node has another UID than the recorded one. absence blocks what would follow from pods
    /// that a list lacks: the list is older than another one, suddenly empty, or lacks most pods at once. pod/NS/NAME blocks
    /// one pod: its cgroup, directory and runtime contradict each other. Each may be a mistake in the configuration or in the
    /// cluster, where terminating pods would cost data: check that before you approve it.
    #[command(after_help = "Examples:
  # List the safety holds
  pod-teardown holds

What no approval can change, such as a living kubelet, is shown first.

Exit code: 0; 64 the command line is wrong; 1 no agent answers, or it runs with --mode never.")]
    Holds(QueryFlags),
    Approve(ApproveArgs),
    Handover(HandoverArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    /// Show the versions of this program, the agent, the kernel, the container runtime and the API server.
    ///
    /// Without an agent, its row shows why it does not answer.
    #[command(after_help = "Examples:
  # Show all versions
  pod-teardown version
  # Only the version of this program
  pod-teardown --version

Exit code: 0, also if no agent answers; 64 the command line is wrong.")]
    Version(PlainQueryFlags),
    /// Show the garbage collector of owner references.
    Gc {
        /// What to show.
        #[command(subcommand)]
        verb: GcVerb,
    },
    /// Print the completion script for a shell.
    #[command(after_help = "Examples:
  # Install it for bash, zsh or fish
  pod-teardown completion bash > /etc/bash_completion.d/pod-teardown
  pod-teardown completion zsh > /usr/local/share/zsh/site-functions/_pod-teardown
  pod-teardown completion fish > ~/.config/fish/completions/pod-teardown.fish

The packages contain these files.

Exit code: 0; 64 the command line is wrong.")]
    Completion {
        /// The shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the manual pages into a directory: one for the program and one for each verb.
    #[command(hide = true)]
    Man {
        /// An existing directory.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}
