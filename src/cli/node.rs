//! Flags of `run` and `check`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Args, builder::BoolishValueParser};

use super::{
    output::{OutputFormat, SocketFlag},
    values::ModeFlag,
};
use crate::{
    collector::Mode,
    node::{kubelet_process::flags::KubeletFlags, unmounts::ForceUnmount},
};

const NODE: &str = "Node and kubelet";
const AGENT: &str = "Agent";
const TAKEOVER: &str = "Takeover";
const TEARDOWN: &str = "Teardown";
const GC: &str = "Garbage collector";
const MONITORING: &str = "Monitoring";

/// Check whether the agent can work on this node: configuration, API server, rights, runtime, kubelet, journal. Changes nothing.
///
/// Each row that is not ok has a remedy, and a section in the runbook. The last line is the verdict.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Check with the settings of the systemd service
  pod-teardown check --service

Exit code: 0 the agent can work here; 64 the command line is wrong; 78 the configuration is wrong or incomplete; 69 API server \
or runtime unreachable; 1 any other failure. The first of these applies.")]
pub struct CheckArgs {
    /// Use the settings in /etc/default/pod-teardown, which are those of the service. Flags of this command override them.
    #[arg(long)]
    pub service: bool,
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
    #[command(flatten)]
    pub node: NodeFlags,
}

/// Flags of `run` and `check`. Each is also a variable: `--mode` is `POD_TEARDOWN_MODE`, if nothing else is written here.
#[derive(Debug, Clone, Args)]
#[command(mut_args(with_variable))]
pub struct NodeFlags {
    /// Kubeconfig with the kubelet's own credentials, such as /etc/kubernetes/kubelet.conf, or with others of user system:node:NAME
    /// in group system:nodes. It is read again when the file, or a file that it names, has changed. Not needed with --mode never,
    /// while a kubelet runs here or has run before, or if the files of a known distribution exist (kubeadm, EKS, GKE, OpenShift,
    /// k3s, RKE2).
    #[arg(long, help_heading = NODE, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object [default: the kubelet's --hostname-override, else the host name in lower case].
    #[arg(long, help_heading = NODE, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Socket of the container runtime [default: the kubelet's, else unix:///run/containerd/containerd.sock].
    #[arg(long, help_heading = NODE, value_name = "URL")]
    pub cri_endpoint: Option<String>,
    /// The kubelet's --root-dir, which contains a directory pods [default: the kubelet's, else /var/lib/kubelet].
    #[arg(long, help_heading = NODE, value_name = "DIR")]
    pub kubelet_root: Option<PathBuf>,
    /// The kubelet's configuration file. The agent reads cgroupRoot, cgroupsPerQOS, podLogsDir, healthzBindAddress,
    /// healthzPort and containerRuntimeEndpoint [default: the kubelet's].
    #[arg(long, help_heading = NODE, value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// The kubelet's directory of drop-ins for that file: all *.conf files in it and in its subdirectories, in the order of their
    /// names [default: the kubelet's].
    #[arg(long, hide = true, help_heading = NODE, value_name = "DIR")]
    pub kubelet_config_dir: Option<PathBuf>,
    /// Flags of this node's kubelet, as far as they are known.
    #[arg(skip)]
    pub kubelet_start: Option<KubeletFlags>,
    /// Parent cgroup of "kubepods" [default: the kubelet's cgroupRoot, else /].
    #[arg(long, hide = true, help_heading = NODE, value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Directory of the agent's journal, which must survive a crash. It is created if it is missing.
    #[arg(long, help_heading = AGENT, value_name = "DIR", default_value = "/var/lib/pod-teardown")]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub socket: SocketFlag,
    /// Whether the agent tears down this node's pods, or only observes how the kubelet does it. The default touches nothing, so that
    /// lost settings do no harm.
    #[arg(long, help_heading = AGENT, value_enum, default_value_t = ModeFlag::Observe)]
    pub mode: ModeFlag,
    /// With --mode auto: time after which the agent takes over. Until then it must have observed, without a gap, that no kubelet
    /// answers at its healthz endpoint or renews its Lease. Then it is active while no kubelet process exists. A restart of the
    /// kubelet should take less; a Lease is valid for 40 s. At least 2s.
    #[arg(long, help_heading = TAKEOVER, value_name = "DURATION", default_value = "45s")]
    pub take_over_after: String,
    /// With --mode auto: stop the systemd service of a kubelet that does not work for --take-over-after, while the API server answers.
    /// This is an unresponsive process that was healthy before, or a kubelet that starts again and again. The service stays stopped
    /// until a user starts it, and the agent takes over at once. Without this flag, an unresponsive kubelet is only reported.
    #[arg(long, help_heading = TAKEOVER, value_parser = BoolishValueParser::new())]
    pub fence_kubelet: bool,
    /// Action for a mount whose server (NFS, CIFS, Ceph, FUSE, 9p) is dead.
    #[arg(long, help_heading = TEARDOWN, value_enum, default_value_t = ForceUnmount::Never)]
    pub force_unmount: ForceUnmount,
    /// Whether the agent collects garbage: objects in the whole cluster whose owners are deleted. One agent is active at a time.
    /// Needs --gc-kubeconfig.
    #[arg(long, help_heading = GC, value_enum, default_value_t = Mode::Auto)]
    pub gc: Mode,
    /// Kubeconfig of the collector, with the rights of deploy/gc-rbac.yaml. Without it the agent collects nothing.
    #[arg(long, help_heading = GC, value_name = "FILE")]
    pub gc_kubeconfig: Option<PathBuf>,
    /// Report the role of the agent in the cluster: as the condition PodTeardownActive of its Node, and as events about the Node.
    #[arg(
        long,
        help_heading = MONITORING,
        value_name = "BOOL",
        value_parser = BoolishValueParser::new(),
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub node_condition: bool,
    /// Address for metrics over HTTP, at /metrics, such as 127.0.0.1:9464 or [::]:9464 [default: none]. There is no
    /// authentication: use an address that only Prometheus can reach.
    #[arg(long, help_heading = MONITORING, value_name = "ADDR")]
    pub metrics_addr: Option<String>,
    /// Export a trace of each pod teardown to this OpenTelemetry collector (OTLP over gRPC), such as http://127.0.0.1:4317 or
    /// https://otel.example.com:4317. Spans of the container runtime become part of the trace. A token for the collector belongs in
    /// OTEL_EXPORTER_OTLP_HEADERS: KEY=VALUE, several separated by commas, values percent-encoded [default: none].
    #[arg(long, hide = true, help_heading = MONITORING, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// PEM file with the certificates of the authorities for an https:// collector [default: those of the system].
    #[arg(long, hide = true, help_heading = MONITORING, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
    /// Time for pods in progress to finish when the agent is stopped.
    #[arg(long, hide = true, help_heading = AGENT, value_name = "DURATION", default_value = "20s")]
    pub shutdown_timeout: String,
    /// Maximum time for which a terminating CSI or DRA driver of this node waits for other terminating pods that need it. A node
    /// service, such as the daemon of the network plugin, waits for all other terminating pods in the same way. Then it terminates,
    /// and an event names the pods that still need it.
    #[arg(long, hide = true, help_heading = TEARDOWN, value_name = "DURATION", default_value = "10m")]
    pub driver_hold: String,
}

fn with_variable(flag: Arg) -> Arg {
    // A flag of `check` alone has no heading, and a flag of all verbs has its variable.
    let is_setting = flag.get_help_heading().is_some() && flag.get_env().is_none();
    let variable = format!("POD_TEARDOWN_{}", flag.get_id().as_str().to_uppercase());
    if is_setting { flag.env(variable) } else { flag }
}
