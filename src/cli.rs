//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, builder::BoolishValueParser};
use clap_complete::Shell;

use crate::{node::kubelet_process::flags::KubeletFlags, object_name::ObjectName};

mod read;
mod service;
mod values;

pub use read::Read;
pub use service::ServiceSettings;
pub use values::{
    CgroupDriverFlag, ForceUnmountFlag, GcFlag, GraphFormat, PodName, PodsFlag, TimelineFormat, UnsyncedFlag,
};
use values::{reason, whole_seconds};

/// Takes Kubernetes pods down the way the kubelet does, straight against the container runtime, and collects garbage.
///
/// Stands on a node whose kubelet is gone and finishes the deletion of its pods: preStop hooks, containers, sandbox,
/// volumes, cgroup, status, and last the API object, each step checked before the next. With --gc-kubeconfig it also deletes
/// objects whose owners are gone, in the whole cluster, while the collector of kube-controller-manager does not work.
///
/// Everything but --help and completions is for root. The first thing to run is check.
#[derive(Debug, Parser)]
#[command(name = "pod-teardown", version, max_term_width = 110)]
#[command(
    after_help = "Exit code: 0 all is well; 64 the command line is wrong; 78 something is configured wrongly; 1 anything \
    else; check has a few more."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the agent of this node, in the foreground.
    ///
    /// While a kubelet works on this node's pods, or the Node in the API is not this machine, nothing is touched and the
    /// reason is said. An API server or runtime that is away is waited for.
    #[command(
        after_help = "Example:\n  pod-teardown run --kubeconfig /etc/kubernetes/kubelet.conf --node-name worker-1 \\\n    \
        --kubelet-config /var/lib/kubelet/config.yaml\n\nSee what it would do first: add --dry-run, on a node \
        without a kubelet (beside one it does nothing, and has nothing to tell).\n\nExit code: 0 it was told to stop; 64 the \
        command line is wrong; 78 something is configured wrongly; 1 anything else, also that another agent works here."
    )]
    Run(NodeFlags),
    /// Check whether the agent could work here: configuration, API, rights, identity, runtime. Touches nothing.
    #[command(
        after_help = "Examples:\n  pod-teardown check --kubeconfig /etc/kubernetes/kubelet.conf --kubelet-config /var/lib/kubelet/config.yaml\n\nWith \
        the settings of the service:\n  (set -a; . /etc/default/pod-teardown; pod-teardown \
        check)\n\nExit code: 0 all is well; 64 the command is used wrongly; 78 something is configured wrongly; 69 the API server or the runtime \
        cannot be reached; 1 anything else. The first of these that applies."
    )]
    Check(NodeFlags),
    /// Show what the running agent is doing, and what holds it back.
    ///
    /// First the runtime, the API server and, with --pods auto, whose turn it is: what was seen of the kubelet's process,
    /// of its health and of its Lease, and for how long. HELD says why nothing may be touched, which beside a kubelet that
    /// works is as it should be; PAUSED who has paused it. "besides" names what is here and cannot be proven to be a pod of
    /// the API server: it is left alone. Then each pod that is being taken down: where it stands, the grace that is left, and
    /// what failed last.
    #[command(
        after_help = "Examples:\n  pod-teardown status\n  pod-teardown status --json | jq .understudy\n\nExit code: 0, whatever it \
        shows; 64 the command line is wrong; 1 no agent answers."
    )]
    Status(QueryFlags),
    /// Show how the teardown of a pod went, as bars over time.
    #[command(
        after_help = "Examples:\n  pod-teardown timeline default/web-0\n  pod-teardown timeline default/web-0 --format svg >web-0.svg\n\nThe agent remembers the last 256 teardowns \
        since it was started."
    )]
    Timeline {
        /// The pod, as NAMESPACE/NAME.
        #[arg(value_name = "NS/POD")]
        pod: PodName,
        /// How to print it.
        #[arg(long, value_enum, default_value_t = TimelineFormat::Text)]
        format: TimelineFormat,
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// Explain why a pod of this node, or any object that the collector knows, is still there, and what it waits for.
    ///
    /// Of a pod whose end this agent has begun: where it stands, what is done, and what it waits for, such as a mount that is
    /// busy, with pid, command and container of whoever holds it, or the finalizers of its object.
    ///
    /// Of objects that the collector knows: those that are being deleted and wait for their dependents (the finalizers
    /// foregroundDeletion and orphan), that block the deletion of an owner, or that are kept because nobody can tell whether
    /// their owner is there. It follows who waits for whom down to the one that everything waits for, and says what that one
    /// waits for, the last failure included.
    #[command(
        after_help = "Examples:\n  pod-teardown why default/web-0\n  pod-teardown why Deployment.apps/default/web\n  \
        pod-teardown why Namespace/old\n  pod-teardown why 0b9a8230-aace-4480-91d0-db24e46eb609\n\nKIND may be the plural or a \
        short name too, as deploy, in any case; without .GROUP any group fits. Of what is no pod of this node only the agent \
        that collects has an answer; any other says whom to ask. Exit code: 0; 64 the command line is wrong; 1 anything else, \
        also that nobody here knows such an object."
    )]
    Why {
        /// The object: a pod, a UID, or kind and name.
        #[arg(value_name = "NS/POD|UID|KIND[.GROUP]/[NS/]NAME")]
        object: ObjectName,
        /// How to ask the agent.
        #[command(flatten)]
        query: QueryFlags,
    },
    /// End a pod of this node now, as if its grace period had begun, and leave its object: its status says how it ended.
    ///
    /// Its preStop hooks run and its containers are stopped within the grace period. Waits until nothing of it runs and the
    /// API server shows that, and tells what holds it up and how the pod has ended; interrupted, it leaves the pod to the
    /// agent, which goes on, also if it is stopped and started again. Only a kubelet that comes before the end takes the pod
    /// over, and the request is given up. A pod that has
    /// ended already stays as it is. Disruption budgets are not asked, and a controller may start another pod in its
    /// place: this is for a node that cannot wait. In the ordinary case use kubectl delete or kubectl drain. Mirrors of
    /// static pods are refused, and everything while a kubelet works here.
    #[command(
        after_help = "Example:\n  pod-teardown kill default/web-0 --grace 5s\n\nExit code: 0 it has ended, now or \
        before; 64 the command line is wrong; 1 it was refused, or no agent answers or stays until the end."
    )]
    Kill(StopFlags),
    /// End a pod of this node as Failed, with a reason and a message that its status then shows.
    ///
    /// As kill, but the pod counts as failed whatever its containers' exit codes are, with the condition DisruptionTarget
    /// (reason TerminationByKubelet), as when a kubelet evicts a pod. Asked for again before its end, the last reason and
    /// message count; a pod that has ended already keeps its phase and reason. Disruption budgets are not asked: kubectl
    /// drain does.
    #[command(
        after_help = "Example:\n  pod-teardown evict default/web-0 --reason Evicted --message 'The node runs out of \
        disk.'\n\nExit code: 0 it has ended, now or before (what is said tells how); 64 the command line is wrong; 1 it was \
        refused, or no agent answers or stays until the end."
    )]
    Evict {
        /// Which pod, and how.
        #[command(flatten)]
        stop: StopFlags,
        /// Reason in its status: one word, such as Evicted.
        #[arg(long, value_name = "WORD", value_parser = reason)]
        reason: String,
        /// Why, for people.
        #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        message: String,
    },
    /// Show what the agent's guards hold back until somebody releases it: since when, why, and what a release would do.
    ///
    /// Held are: everything while the Node has another UID than the recorded one (node-uid); all that would follow from pods
    /// that a list lacks, while the list is older than another one, suddenly empty, or lacks most pods at once (absence); a
    /// pod whose cgroup, directory and runtime contradict each other (pod/NS/NAME). Each of these may be a mistake in the
    /// configuration or in the cluster, after which taking pods down would cost data: look before you release.
    #[command(
        after_help = "Example:\n  pod-teardown held\n\nWhat nobody can release, such as a kubelet that is here, is said \
        first. Exit code: 0, also if nothing is held; 64 the command line is wrong; 1 no agent answers, or it takes no pods down."
    )]
    Held(QueryFlags),
    /// Release one item that held shows. There is no second question: what it holds back is done from then on.
    ///
    /// A release counts for what it rests on when it is given, or with --digest for what held showed: if that is not the
    /// same any more, nothing is released. What turns up later is held again. It is logged with who gave it, and known after
    /// a restart of the agent.
    #[command(
        after_help = "Examples:\n  pod-teardown release absence\n  pod-teardown release pod/default/web-0 --digest 9f86d081884c7d65\n  pod-teardown \
        release 0b9a8230-aace-4480-91d0-db24e46eb609\n\nExit code: 0 it is released; 64 the command line is wrong; 1 nothing \
        of that name is held (all names are told), or no agent answers."
    )]
    Release {
        /// As held names it; a pod also by its UID.
        #[arg(value_name = "ITEM", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        item: String,
        /// Only if what it rests on is still what held showed with this digest.
        #[arg(long, value_name = "DIGEST")]
        digest: Option<String>,
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// Give this node's pods to a kubelet that is about to start.
    ///
    /// For the ExecStartPre= of kubelet.service. Nothing begins any more; pods that are being taken down come to a safe point:
    /// all their containers are stopped and no call is under way, and what was killed or evicted is over in the API. One whose
    /// stop has failed tries once more. Then, or at the end of the time, the agent touches nothing until that kubelet is gone
    /// again, or has not come within --take-over-after.
    #[command(
        after_help = "Example:\n  pod-teardown hand-back --timeout 60s\n\nExit code: always 0, also if no agent answers or the \
        command line is wrong: it keeps no kubelet from starting."
    )]
    HandBack {
        /// How long pods have to come to a safe point; with a unit, such as 60s. Of those that have not, the kubelet repeats
        /// hooks and grace period; they are named. Less than the TimeoutStartSec= of the unit.
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
        timeout: Duration,
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// Begin nothing any more on this node, until resume, also across restarts of the agent.
    ///
    /// Pods that are being taken down come to a safe point, no call under way and all their containers stopped, and stay
    /// there; a grace period that runs goes on. Deletions are noticed and wait; kill and evict are refused. The collector
    /// goes on: it works for the whole cluster, and --gc never ends it.
    #[command(
        after_help = "Example:\n  pod-teardown pause\n\nstatus shows who has paused it, and since when. Exit code: 0 it is \
        paused; 64 the command line is wrong; 1 no agent answers."
    )]
    Pause {
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// End a pause: all that waits is taken up again.
    #[command(
        after_help = "Example:\n  pod-teardown resume\n\nExit code: 0 it is not paused any more, or was not; 64 the command \
        line is wrong; 1 no agent answers."
    )]
    Resume {
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
    /// Look into the garbage collector of owner references.
    Gc {
        /// What to look at.
        #[command(subcommand)]
        verb: GcVerb,
    },
    /// Print a script by which a shell completes what is typed after pod-teardown.
    #[command(
        after_help = "Examples:\n  pod-teardown completions bash > /etc/bash_completion.d/pod-teardown\n  pod-teardown completions \
        zsh > /usr/local/share/zsh/site-functions/_pod-teardown\n  pod-teardown completions fish > \
        ~/.config/fish/completions/pod-teardown.fish\n\nThe Debian package brings them."
    )]
    Completions {
        /// For which shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Write the manual pages into a directory: one for the program and one for each verb.
    #[command(hide = true)]
    Man {
        /// It must be there.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// The verbs of `gc`.
#[derive(Debug, Subcommand)]
pub enum GcVerb {
    /// Show how the collector stands: whose turn it is, each kind, the queues, what waits longest and why, what is kept.
    #[command(
        after_help = "Examples:\n  pod-teardown gc status\n  pod-teardown gc status --json | jq .work\n\nExit code: 0, whatever it \
        shows; 64 the command line is wrong; 1 no agent answers, or it does not collect."
    )]
    Status(QueryFlags),
    /// Draw objects with their owners and dependents as the collector knows them, and what it decides on each.
    ///
    /// With a UID: what is connected with that object, nearest first. Without: all that is not idle, with what is connected
    /// with it: objects that are being deleted, that wait for others, and owners that are not there or not known to be.
    /// The picture is limited to 200 objects, and says how much it leaves out. An arrow leads from a dependent to its
    /// owner; a red one is what holds up the owner's deletion.
    #[command(
        after_help = "Examples:\n  pod-teardown gc graph --format svg > picture.svg\n  pod-teardown gc graph | dot -Tpng \
        > picture.png\n  pod-teardown gc graph --uid $(kubectl get deployment web -o jsonpath={.metadata.uid}) --format \
        svg > web.svg\n  pod-teardown gc graph --format json | jq '.objects[] | select(.look == \"blocked\")'\n\nOnly an \
        agent that collects has an answer; any other says so. Exit code: 0; 64 the command line is wrong; 1 anything else."
    )]
    Graph {
        /// UID of the object in the middle [default: all that is not idle].
        #[arg(long)]
        uid: Option<String>,
        /// How to draw it.
        #[arg(long, value_enum, default_value_t = GraphFormat::Dot)]
        format: GraphFormat,
        /// How to reach the agent.
        #[command(flatten)]
        socket: SocketFlag,
    },
}

/// `--socket`.
#[derive(Debug, Clone, Args)]
pub struct SocketFlag {
    /// Admin socket of the running agent.
    #[arg(long, env = "POD_TEARDOWN_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}

/// Flags of `kill` and `evict`.
#[derive(Debug, Clone, Args)]
pub struct StopFlags {
    /// The pod, as NAMESPACE/NAME.
    #[arg(value_name = "NS/POD")]
    pub pod: PodName,
    /// Only if this is its UID.
    #[arg(long)]
    pub uid: Option<String>,
    /// Grace period instead of the pod's own, with a unit, such as 5s. Of a pod that ends already it can only shorten it.
    #[arg(long, value_name = "DURATION", value_parser = whole_seconds)]
    pub grace: Option<i64>,
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
}

/// Flags of queries.
#[derive(Debug, Clone, Args)]
pub struct QueryFlags {
    /// How to reach the agent.
    #[command(flatten)]
    pub socket: SocketFlag,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Default of `--socket`.
pub const DEFAULT_SOCKET: &str = "/run/pod-teardown/pod-teardown.sock";

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
