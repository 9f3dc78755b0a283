//! The command line.

#![allow(
    missing_docs,
    reason = "flags and verbs have help; parts of a command line have none"
)]

use std::path::PathBuf;

use clap::{Parser, Subcommand, builder::Styles};
use clap_complete::Shell;

mod control;
mod gc;
pub mod kubectl;
mod node;
mod object;
mod output;
mod read;
mod show;
mod values;

pub use control::{ApprovalRequest, HandoverArgs, PauseRequest, StopArgs, StopRequest};
pub use gc::GcVerb;
pub use node::{CheckArgs, NodeFlags};
pub use object::{ObjectArg, PodArg, UsageError, parse_pod_name};
pub use output::{DEFAULT_SOCKET, OutputFormat, QueryFlags, SocketFlag, TimelineFormat};
pub use read::unknown_variables;
pub use show::{PodQueryArgs, ReportArgs, TimelineArgs};
pub use values::{MAX_PAUSE, ModeFlag};

/// Terminates Kubernetes pods as the kubelet does, directly against the container runtime, and collects garbage.
///
/// The agent runs beside the kubelet of a node. When the kubelet is down, it finishes the termination of deleted pods: preStop
/// hooks, containers, sandbox, volumes, cgroup, status, and last the API object. Each step is verified before the next one.
/// Pods that are not deleted keep running. With --gc-kubeconfig the agent also deletes objects in the whole cluster whose
/// owners are deleted, while the garbage collector of kube-controller-manager is not active.
///
/// The commands that query the agent need root; check needs it for complete results. Start with check.
#[derive(Debug, Parser)]
#[command(name = "pod-teardown", version, term_width = 100, styles = Styles::plain())]
#[command(
    after_help = "Exit code: 0 success; 64 the command line is wrong; 78 the configuration is wrong; 1 any other error, also that \
    no agent answers, or that it does not know the object. check has one more, and handover always succeeds."
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the agent of this node, in the foreground.
    ///
    /// While a kubelet works on this node's pods, or the Node in the API is not this machine, the agent touches nothing, and
    /// reports the reason. It waits for an API server or runtime that cannot be reached.
    #[command(after_help = "Examples:
  # Act while the kubelet is down
  pod-teardown run --mode auto")]
    Run(NodeFlags),
    Check(CheckArgs),
    /// Show the role of the agent of this node, and the terminating pods.
    ///
    /// Lines appear only if there is something to show. A pod without a step is left to the kubelet, or waits for the takeover.
    /// AGE counts from the moment when this agent learned of the termination. GRACE is what is left of the grace period.
    #[command(after_help = "Examples:
  # With UIDs, attempts and counters
  pod-teardown status -o wide")]
    Status(QueryFlags),
    Timeline(TimelineArgs),
    /// Explain why a pod of this node still exists, and what it waits for, most urgent first, each with a remedy.
    ///
    /// It works for any pod, also beside a living kubelet. The node is only read. What cannot be read in time is reported as unknown.
    #[command(after_help = "Examples:
  # Why is pod db-0 in namespace shop still terminating?
  pod-teardown why -n shop db-0

For other objects see gc why.")]
    Why(PodQueryArgs),
    /// Show what the agent would do to take a pod down now, step by step. Nothing is changed.
    ///
    /// Lines before the steps show what blocks them now, such as a living kubelet or a safety hold. A pod that is not being deleted is
    /// left alone: its plan shows what a deletion would cause.
    #[command(after_help = "Examples:
  # What would be done to pod web-0 in namespace default, with the paths of its cgroup?
  pod-teardown plan web-0 -o wide")]
    Plan(PodQueryArgs),
    Report(ReportArgs),
    Stop(StopArgs),
    /// Show the safety holds: what the agent does only after an approval, since when, why, and the effect of an approval.
    ///
    /// Each may be a mistake in the configuration or in the cluster, where terminating pods would cost data: check that before you
    /// approve it. What no approval can change, such as a living kubelet, is shown first.
    #[command(after_help = "Examples:
  # List the safety holds
  pod-teardown holds")]
    Holds(QueryFlags),
    /// Approve one safety hold that `holds` shows. The agent then does what the hold has blocked.
    ///
    /// On a terminal the command shows the hold and asks before it approves. Elsewhere it needs --yes. An approval covers the evidence
    /// of now, or of the digest. New evidence is blocked again. The approval and the user who gave it are logged.
    #[command(after_help = "Examples:
  # Treat the pods that a list lacks as deleted
  pod-teardown approve absence --reason 'etcd was restored, the pods are deleted'")]
    Approve {
        #[command(flatten)]
        request: ApprovalRequest,
        #[command(flatten)]
        socket: SocketFlag,
    },
    Handover(HandoverArgs),
    /// Start no work on this node until `resume`, or for a limited time. A restart or a reboot does not end the pause.
    ///
    /// Terminating pods reach a safe point, where no call is in progress and all their containers are stopped, and stay there; a
    /// grace period continues to run. `stop` is refused. The garbage collector continues, because it works for the whole cluster. A
    /// second pause replaces the duration and the reason of the first.
    #[command(after_help = "Examples:
  # Pause the agent of this node for two hours
  pod-teardown pause --for 2h --reason 'storage maintenance'")]
    Pause {
        #[command(flatten)]
        request: PauseRequest,
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// End a pause. Waiting work continues.
    #[command(after_help = "Examples:
  # End the pause
  pod-teardown resume")]
    Resume(SocketFlag),
    /// Show the versions of this program, the agent and the container runtime.
    #[command(after_help = "Examples:
  # Show the versions
  pod-teardown version")]
    Version(SocketFlag),
    /// Show the garbage collector of owner references.
    Gc {
        #[command(subcommand)]
        verb: GcVerb,
    },
    /// Print the completion script for a shell. The packages contain these files.
    #[command(after_help = "Examples:
  # Install it for bash
  pod-teardown completion bash > /etc/bash_completion.d/pod-teardown")]
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
