//! Flags of `run` and `check`.

use std::path::PathBuf;

use clap::{ArgAction, Args, builder::BoolishValueParser};

use super::{
    output::SocketFlag,
    values::{CgroupDriverFlag, ForceUnmountFlag, GcFlag, ModeFlag},
};
use crate::node::kubelet_process::flags::KubeletFlags;

const NODE: &str = "Node and kubelet";
const AGENT: &str = "Agent";
const TAKEOVER: &str = "Takeover";
const TEARDOWN: &str = "Teardown";
const GC: &str = "Garbage collector";
const MONITORING: &str = "Monitoring";

/// Flags of `run` and `check`.
#[derive(Debug, Clone, Args)]
pub struct NodeFlags {
    /// Kubeconfig with the kubelet's own credentials, such as /etc/kubernetes/kubelet.conf, or with others of user system:node:NAME
    /// in group system:nodes. It is read again when the file, or a file that it names, has changed. Not needed with --mode never,
    /// while a kubelet runs here or has run before, or if the files of a known distribution exist (kubeadm, EKS, GKE, OpenShift,
    /// k3s, RKE2).
    #[arg(long, help_heading = NODE, env = "POD_TEARDOWN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node's Node object [default: the kubelet's --hostname-override, else the host name in lower case].
    #[arg(long, help_heading = NODE, env = "POD_TEARDOWN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Socket of the container runtime [default: the kubelet's, else unix:///run/containerd/containerd.sock].
    #[arg(long, help_heading = NODE, env = "POD_TEARDOWN_CRI_ENDPOINT", value_name = "URL")]
    pub cri_endpoint: Option<String>,
    /// The kubelet's --root-dir, which contains a directory pods [default: the kubelet's, else /var/lib/kubelet].
    #[arg(long, help_heading = NODE, env = "POD_TEARDOWN_KUBELET_ROOT", value_name = "DIR")]
    pub kubelet_root: Option<PathBuf>,
    /// The kubelet's configuration file. The agent reads cgroupDriver, cgroupRoot, cgroupsPerQOS, podLogsDir, healthzBindAddress,
    /// healthzPort and containerRuntimeEndpoint [default: the kubelet's].
    #[arg(long, help_heading = NODE, env = "POD_TEARDOWN_KUBELET_CONFIG", value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// The kubelet's directory of drop-ins for that file: all *.conf files in it and in its subdirectories, in the order of their
    /// names [default: the kubelet's].
    #[arg(long, hide = true, help_heading = NODE, env = "POD_TEARDOWN_KUBELET_CONFIG_DIR", value_name = "DIR")]
    pub kubelet_config_dir: Option<PathBuf>,
    /// Flags of this node's kubelet, as far as they are known.
    #[arg(skip)]
    pub kubelet_start: Option<KubeletFlags>,
    /// The kubelet's cgroup driver.
    #[arg(long, hide = true, help_heading = NODE, env = "POD_TEARDOWN_CGROUP_DRIVER", value_enum, default_value_t = CgroupDriverFlag::Auto)]
    pub cgroup_driver: CgroupDriverFlag,
    /// Parent cgroup of "kubepods" [default: the kubelet's cgroupRoot, else /].
    #[arg(long, hide = true, help_heading = NODE, env = "POD_TEARDOWN_CGROUP_ROOT", value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Directory of the agent's journal, which must survive a crash. It is created if it is missing.
    #[arg(
        long,
        help_heading = AGENT,
        env = "POD_TEARDOWN_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/pod-teardown"
    )]
    pub state_dir: PathBuf,
    /// The agent's admin socket.
    #[command(flatten)]
    pub socket: SocketFlag,
    /// Whether the agent tears down this node's pods, or only observes how the kubelet does it. The default touches nothing, so that
    /// lost settings do no harm.
    #[arg(long, help_heading = AGENT, env = "POD_TEARDOWN_MODE", value_enum, default_value_t = ModeFlag::Observe)]
    pub mode: ModeFlag,
    /// With --mode auto: time after which the agent takes over. Until then it must have observed, without a gap, that no kubelet
    /// answers at its healthz endpoint or renews its Lease. Then it is active while no kubelet process exists. A restart of the
    /// kubelet should take less; a Lease is valid for 40 s. At least 2s.
    #[arg(
        long,
        help_heading = TAKEOVER,
        env = "POD_TEARDOWN_TAKE_OVER_AFTER",
        value_name = "DURATION",
        default_value = "45s"
    )]
    pub take_over_after: String,
    /// With --mode auto: stop the systemd service of a kubelet that does not work for --take-over-after, while the API server answers.
    /// This is an unresponsive process that was healthy before, or a kubelet that starts again and again. The service stays stopped
    /// until a user starts it, and the agent takes over at once. Without this flag, an unresponsive kubelet is only reported.
    #[arg(long, help_heading = TAKEOVER, env = "POD_TEARDOWN_FENCE_KUBELET", value_parser = BoolishValueParser::new())]
    pub fence_kubelet: bool,
    /// Action for a mount whose server (NFS, CIFS, Ceph, FUSE, 9p) is dead.
    #[arg(long, help_heading = TEARDOWN, env = "POD_TEARDOWN_FORCE_UNMOUNT", value_enum, default_value_t = ForceUnmountFlag::Never)]
    pub force_unmount: ForceUnmountFlag,
    /// Whether the agent collects garbage: objects in the whole cluster whose owners are deleted. One agent is active at a time.
    /// Needs --gc-kubeconfig.
    #[arg(long, help_heading = GC, env = "POD_TEARDOWN_GC", value_enum, default_value_t = GcFlag::Auto)]
    pub gc: GcFlag,
    /// Kubeconfig of the collector, with the rights of deploy/gc-rbac.yaml. Without it the agent collects nothing.
    #[arg(long, help_heading = GC, env = "POD_TEARDOWN_GC_KUBECONFIG", value_name = "FILE")]
    pub gc_kubeconfig: Option<PathBuf>,
    /// Report the role of the agent in the cluster: as the condition PodTeardownActive of its Node, and as events about the Node.
    #[arg(
        long,
        help_heading = MONITORING,
        env = "POD_TEARDOWN_NODE_CONDITION",
        value_name = "BOOL",
        value_parser = BoolishValueParser::new(),
        default_value_t = true,
        action = ArgAction::Set
    )]
    pub node_condition: bool,
    /// Address for metrics over HTTP, at /metrics, such as 127.0.0.1:9464 or [::]:9464 [default: none]. There is no
    /// authentication: use an address that only Prometheus can reach.
    #[arg(long, help_heading = MONITORING, env = "POD_TEARDOWN_METRICS_ADDR", value_name = "ADDR")]
    pub metrics_addr: Option<String>,
    /// Export a trace of each pod teardown to this OpenTelemetry collector (OTLP over gRPC), such as http://127.0.0.1:4317 or
    /// https://otel.example.com:4317. Spans of the container runtime become part of the trace [default: none].
    #[arg(long, hide = true, help_heading = MONITORING, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// PEM file with the certificates of the authorities for an https:// collector [default: those of the system].
    #[arg(long, hide = true, help_heading = MONITORING, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub otlp_ca_file: Option<PathBuf>,
    /// Headers for that collector, such as a token, in the form of OTEL_EXPORTER_OTLP_HEADERS: KEY=VALUE, several separated by
    /// commas, values percent-encoded. Set the variable: other users of the node can see a flag [default: none].
    #[arg(long, hide = true, help_heading = MONITORING, env = "OTEL_EXPORTER_OTLP_HEADERS", value_name = "HEADERS")]
    pub otlp_headers: Option<String>,
    /// Time for pods in progress to finish when the agent is stopped.
    #[arg(
        long,
        hide = true,
        help_heading = AGENT,
        env = "POD_TEARDOWN_SHUTDOWN_TIMEOUT",
        value_name = "DURATION",
        default_value = "20s"
    )]
    pub shutdown_timeout: String,
    /// Maximum time for which a terminating CSI or DRA driver of this node waits for other terminating pods that need it. A node
    /// service, such as the daemon of the network plugin, waits for all other terminating pods in the same way. Then it terminates,
    /// and an event names the pods that still need it.
    #[arg(
        long,
        hide = true,
        help_heading = TEARDOWN,
        env = "POD_TEARDOWN_DRIVER_HOLD",
        value_name = "DURATION",
        default_value = "10m"
    )]
    pub driver_hold: String,
}
