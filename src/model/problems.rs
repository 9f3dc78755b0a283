//! Problems that both the start of the agent and `check` find, so that each has one text and one remedy.

use std::{fmt::Display, net::SocketAddr, path::Path};

use super::problem::Problem;

/// The address for metrics cannot be listened on.
pub fn metrics_addr(addr: SocketAddr, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("--metrics-addr {addr}: {why}"),
        "name with --metrics-addr an address of this machine and a port that nobody else uses, such as 127.0.0.1:9464",
    )
}

/// The admin socket cannot be made.
pub fn admin_socket(path: &Path, why: &dyn Display, is_taken: bool) -> Problem {
    problem(is_taken)(
        format!("--socket {}: {why}", path.display()),
        "run it as root, and name a path with --socket where a socket can be made and that nobody else uses",
    )
}

/// The lock on this node's pods cannot be taken.
pub fn node_lock(why: &dyn Display, is_taken: bool) -> Problem {
    let remedy = if is_taken {
        "stop the other one first, unless it is the service that is to work here (`systemctl status pod-teardown`), or give \
         this one a --kubelet-root of its own"
    } else {
        "run it as root; if that does not help, name the kubelet's directory with --kubelet-root"
    };
    problem(is_taken)(why.to_string(), remedy)
}

/// The journal cannot be used, and only a user can change that.
pub fn journal(state_dir: &Path, why: &dyn Display, is_taken: bool) -> Problem {
    let remedy = if is_taken {
        "give each agent a --state-dir of its own"
    } else {
        "run it as root; if that does not help, let --state-dir name a directory of the agent's own"
    };
    problem(is_taken)(format!("--state-dir {}: {why}", state_dir.display()), remedy)
}

/// No CRI runtime listens on the endpoint.
pub fn not_a_runtime(endpoint: &dyn Display, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("--cri-endpoint {endpoint}: what listens there does not speak CRI: {why}"),
        "name the socket of containerd or CRI-O with --cri-endpoint",
    )
}

/// The cgroup hierarchies are not found.
pub fn cgroups(why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("cgroups: {why}"),
        "mount /sys/fs/cgroup, or run the agent where the host's is mounted",
    )
}

/// No client of the API server can be made of what this flag names.
pub fn api_client(flag: &str, why: &dyn Display) -> Problem {
    let remedy = format!("correct server, certificates or token in {flag}");
    Problem::configuration(format!("{flag}: {why}"), &remedy)
}

/// The Node is that of another machine.
pub fn other_machine(node: &str, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("Node {node} is another machine: {why}"),
        "give this machine's own Node as --node-name",
    )
}

/// The Node is not the one that the journal records.
pub fn other_node(node: &str, uid: &str, recorded: &str) -> Problem {
    Problem::configuration(
        format!("Node {node} has UID {uid}, but the journal was made for {recorded}: the agent touches nothing"),
        "see that --kubeconfig leads to the right cluster; if the node was registered anew: pod-teardown release node-uid",
    )
}

fn problem(is_taken: bool) -> fn(String, &str) -> Problem {
    if is_taken {
        Problem::taken
    } else {
        Problem::configuration
    }
}
