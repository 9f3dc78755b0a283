//! Problems that both the start of the agent and `check` find, so that each has one text and one remedy.

use std::{fmt::Display, net::SocketAddr, path::Path};

use super::problem::Problem;

/// The address for metrics cannot be listened on.
pub fn metrics_addr(addr: SocketAddr, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("--metrics-addr {addr}: {why}"),
        "set --metrics-addr to an address of this node and a port that no other process uses, such as 127.0.0.1:9464",
    )
}

/// The admin socket cannot be created.
pub fn admin_socket(path: &Path, why: &dyn Display, is_taken: bool) -> Problem {
    problem(is_taken)(
        format!("--socket {}: {why}", path.display()),
        "run it as root, and set --socket to a path where a socket can be created and that no other process uses",
    )
}

/// The lock on this node's pods cannot be taken.
pub fn node_lock(why: &dyn Display, is_taken: bool) -> Problem {
    let remedy = if is_taken {
        "stop the other agent first, unless it is the service that should run here (`systemctl status pod-teardown`), or \
         give this agent a different --kubelet-root"
    } else {
        "run it as root; if that does not help, set --kubelet-root to the kubelet's --root-dir"
    };
    problem(is_taken)(why.to_string(), remedy)
}

/// The journal cannot be used, and only a user can change that.
pub fn journal(state_dir: &Path, why: &dyn Display, is_taken: bool) -> Problem {
    let remedy = if is_taken {
        "set --state-dir to a separate directory for each agent"
    } else {
        "run it as root; if that does not help, set --state-dir to a directory that only the agent uses"
    };
    problem(is_taken)(format!("--state-dir {}: {why}", state_dir.display()), remedy)
}

/// No CRI runtime listens on the endpoint.
pub fn not_a_runtime(endpoint: &dyn Display, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("--cri-endpoint {endpoint}: the server on this socket does not speak CRI: {why}"),
        "set --cri-endpoint to the socket of containerd or CRI-O",
    )
}

/// The cgroup hierarchies are not found.
pub fn cgroups(why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("cgroups: {why}"),
        "mount /sys/fs/cgroup, or run the agent where the host's cgroup file system is mounted",
    )
}

/// No API client can be created from the file that this flag names.
pub fn api_client(flag: &str, why: &dyn Display) -> Problem {
    let remedy = format!("correct the server, certificates or token in {flag}");
    Problem::configuration(format!("{flag}: {why}"), &remedy)
}

/// The Node object belongs to another machine.
pub fn other_machine(node: &str, why: &dyn Display) -> Problem {
    Problem::configuration(
        format!("Node {node} belongs to another machine: {why}"),
        "set --node-name to the Node of this machine",
    )
}

/// The Node is not the one that the journal records.
pub fn other_node(node: &str, uid: &str, recorded: &str) -> Problem {
    Problem::configuration(
        format!(
            "Node {node} has UID {uid}, but the journal is of the Node with UID {recorded}; the agent changes nothing on this node"
        ),
        "check that --kubeconfig names the right cluster; if the node joined the cluster again: pod-teardown approve node-uid",
    )
}

fn problem(is_taken: bool) -> fn(String, &str) -> Problem {
    if is_taken {
        Problem::taken
    } else {
        Problem::configuration
    }
}
