//! Flags of `run` and `check`.

use std::path::PathBuf;

use clap::{Args, builder::BoolishValueParser};

use super::{
    output::SocketFlag,
    values::{CgroupDriverFlag, ForceUnmountFlag, GcFlag, PodsFlag, UnsyncedFlag},
};
use crate::node::kubelet_process::flags::KubeletFlags;

/// Flags of `run` and `check`.
#[derive(Debug, Clone, Args)]
pub struct NodeFlags {
    /// Credentials for the API server, to watch this node's pods, report on them and delete them: the kubelet's own, such as
    /// /etc/kubernetes/kubelet.conf, or others of user system:node:NAME in group system:nodes. Read again when the file, or
    /// one that it names, has changed. Required, unless --pods never, a kubelet runs here or was seen before, or the files of a
    /// known distribution are there (kubeadm, EKS, GKE, OpenShift, k3s, RKE2).
    #[arg(long, env = "POD_TEARDOWN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this machine's Node object [default: the host name in lower case].
    #[arg(long, env = "POD_TEARDOWN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// Socket of the container runtime [default: the kubelet's, else unix:///run/containerd/containerd.sock].
    #[arg(long, env = "POD_TEARDOWN_CRI_ENDPOINT", value_name = "URL")]
    pub cri_endpoint: Option<String>,
    /// The kubelet's --root-dir, which holds a directory called pods [default: the kubelet's, else /var/lib/kubelet].
    #[arg(long, env = "POD_TEARDOWN_KUBELET_ROOT", value_name = "DIR")]
    pub kubelet_root: Option<PathBuf>,
    /// The kubelet's configuration file: cgroupDriver, cgroupRoot, cgroupsPerQOS, podLogsDir, healthzBindAddress, healthzPort and
    /// containerRuntimeEndpoint are read from it [default: the kubelet's].
    #[arg(long, env = "POD_TEARDOWN_KUBELET_CONFIG", value_name = "FILE")]
    pub kubelet_config: Option<PathBuf>,
    /// The kubelet's directory of drop-ins for that file: each *.conf in it and below it, in the order of their names
    /// [default: the kubelet's].
    #[arg(long, env = "POD_TEARDOWN_KUBELET_CONFIG_DIR", value_name = "DIR")]
    pub kubelet_config_dir: Option<PathBuf>,
    /// Flags of this node's kubelet, as far as they are known.
    #[arg(skip)]
    pub kubelet_start: Option<KubeletFlags>,
    /// Who made the pods' cgroups.
    #[arg(long, env = "POD_TEARDOWN_CGROUP_DRIVER", value_enum, default_value_t = CgroupDriverFlag::Auto)]
    pub cgroup_driver: CgroupDriverFlag,
    /// Cgroup below which the kubelet makes "kubepods" [default: from the kubelet's configuration, else /].
    #[arg(long, env = "POD_TEARDOWN_CGROUP_ROOT", value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Where the agent keeps what must survive a crash; made if it is missing.
    #[arg(
        long,
        env = "POD_TEARDOWN_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/pod-teardown"
    )]
    pub state_dir: PathBuf,
    /// Where status, why, timeline, held and the other verbs find the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
    /// Whether this node's pods are taken down.
    #[arg(long, env = "POD_TEARDOWN_PODS", value_enum, default_value_t = PodsFlag::Auto)]
    pub pods: PodsFlag,
    /// With --pods auto: how long the kubelet must have no process, not answer at its healthz, and not renew its Lease, all
    /// of it seen by this agent, before it takes over; with a unit, such as 45s. A restart of the kubelet should take less,
    /// and a Lease counts for 40 s.
    #[arg(
        long,
        env = "POD_TEARDOWN_TAKE_OVER_AFTER",
        value_name = "DURATION",
        default_value = "45s"
    )]
    pub take_over_after: String,
    /// Stop a kubelet that is wedged: one and the same process is there for all of --take-over-after, and has neither told its
    /// health all that time, as it did before, nor renewed its Lease, though the API server answers. Its unit is stopped through systemd, so it stays so until
    /// somebody starts it; its pods are taken over when its end has been seen for --take-over-after. Without this a wedged
    /// kubelet is left alone, and reported. With --pods auto.
    #[arg(long, env = "POD_TEARDOWN_FENCE_KUBELET", value_parser = BoolishValueParser::new())]
    pub fence_kubelet: bool,
    /// What becomes of a mount whose server (NFS, CIFS, Ceph, FUSE, 9p) is gone.
    #[arg(long, env = "POD_TEARDOWN_FORCE_UNMOUNT", value_enum, default_value_t = ForceUnmountFlag::Never)]
    pub force_unmount: ForceUnmountFlag,
    /// Whether garbage is collected: objects whose owners are gone, in the whole cluster, by one agent at a time. Needs
    /// --gc-kubeconfig.
    #[arg(long, env = "POD_TEARDOWN_GC", value_enum, default_value_t = GcFlag::Auto)]
    pub gc: GcFlag,
    /// Credentials of the collector, with the rights of deploy/gc-rbac.yaml. Without them nothing is collected.
    #[arg(long, env = "POD_TEARDOWN_GC_KUBECONFIG", value_name = "FILE")]
    pub gc_kubeconfig: Option<PathBuf>,
    /// What becomes of foreground deletions and orphaning, which rest on every kind, when one kind cannot be listed for
    /// five minutes.
    #[arg(long, env = "POD_TEARDOWN_GC_UNSYNCED", value_enum, default_value_t = UnsyncedFlag::Hold)]
    pub gc_unsynced: UnsyncedFlag,
    /// How long the end of a foreground deletion waits for a group that another server answers for (an APIService with a
    /// service, such as that of metrics-server), since that cannot be reached; with a unit, such as 10m. Then it ends, and
    /// dependents that are seen later are deleted in the background. Orphaning waits as --gc-unsynced says.
    #[arg(
        long,
        env = "POD_TEARDOWN_GC_AGGREGATED_HOLD",
        value_name = "DURATION",
        default_value = "10m"
    )]
    pub gc_aggregated_hold: String,
    /// Where metrics are served over HTTP, at /metrics, as 127.0.0.1:9464 or [::]:9464 [default: nowhere]. Nobody is asked
    /// who they are: keep it local, or where only those come who may read it.
    #[arg(long, env = "POD_TEARDOWN_METRICS_ADDR", value_name = "ADDR")]
    pub metrics_addr: Option<String>,
    /// Export a trace of each pod teardown to this OpenTelemetry collector (OTLP over gRPC, without TLS), such as
    /// http://127.0.0.1:4317. Spans of the container runtime become part of the trace. [default: no traces]
    #[arg(long, env = "POD_TEARDOWN_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// How long pods that are being taken down may go on when the agent is told to stop; with a unit, such as 20s.
    #[arg(
        long,
        env = "POD_TEARDOWN_SHUTDOWN_TIMEOUT",
        value_name = "DURATION",
        default_value = "20s"
    )]
    pub shutdown_timeout: String,
    /// How long the end of a pod that is a CSI or DRA driver of this node waits for other pods that end and need it to
    /// release their volumes and claims, and that of a node service, such as the daemon of the network plugin, for all
    /// others that end; with a unit, such as 10m. Then it ends, and an event names who is left.
    #[arg(
        long,
        env = "POD_TEARDOWN_DRIVER_HOLD",
        value_name = "DURATION",
        default_value = "10m"
    )]
    pub driver_hold: String,
    /// Decide everything, log every effect, perform none.
    #[arg(long, env = "POD_TEARDOWN_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
}
