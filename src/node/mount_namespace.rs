//! Compares the agent's mount namespace with the runtime's: an unmount in another one has no effect there.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{net::UnixStream, time::sleep};

use crate::model::problem::{Problem, ProblemKind};

/// Interval between checks for a missing runtime.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Checks as [`check`]. Waits while the runtime is down.
///
/// # Errors
/// As [`check`], but the runtime is not down.
pub async fn wait_for_check(proc: &Path, cri_socket: &Path) -> Result<(), Problem> {
    loop {
        match check(proc, cri_socket).await {
            Err(problem) if problem.kind == ProblemKind::Absent => {
                tracing::warn!(why = problem.what, "Container runtime is down; waiting for it");
                sleep(RETRY_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

/// Checks that the agent's mount namespace is that of the process that listens on `cri_socket`, and that of PID 1 as far as that is
/// readable.
///
/// # Errors
/// [`ProblemKind::Absent`] if the runtime does not listen at the moment; else the namespaces differ, or cannot be compared.
pub async fn check(proc: &Path, cri_socket: &Path) -> Result<(), Problem> {
    let pid = peer(cri_socket).await.map_err(|error| {
        let is_down = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        unread(is_down, &format!("the peer of {cri_socket:?} is not known: {error}"))
    })?;
    judge(
        pid,
        namespace(proc, "self"),
        namespace(proc, &pid.to_string()),
        namespace(proc, "1"),
    )
}

/// PID of the process that called `listen`.
async fn peer(socket: &Path) -> io::Result<i32> {
    let pid = UnixStream::connect(socket).await?.peer_cred()?.pid();
    // 0 means a process of another PID namespace.
    pid.filter(|pid| *pid > 0)
        .ok_or_else(|| io::Error::other("it is in another pid namespace"))
}

fn namespace(proc: &Path, pid: &str) -> io::Result<PathBuf> {
    fs::read_link(proc.join(pid).join("ns/mnt"))
}

fn judge(
    pid: i32,
    ours: io::Result<PathBuf>,
    runtime: io::Result<PathBuf>,
    init: io::Result<PathBuf>,
) -> Result<(), Problem> {
    match (ours, runtime, init) {
        (Err(error), _, _) => Err(unread(false, &format!("the agent's cannot be read: {error}"))),
        (Ok(ours), Ok(runtime), Ok(init)) if ours != runtime && ours == init => Err(Problem::configuration(
            format!(
                "the container runtime (pid {pid}) is in a mount namespace that PID 1 does not share, as with OpenShift's kubens: what \
                 this process unmounts would stay mounted there"
            ),
            "run the container runtime and the kubelet in the mount namespace of PID 1, on OpenShift without kubens: another \
             setup is not supported",
        )),
        (Ok(ours), Ok(runtime), _) if ours != runtime => Err(other(&format!("the container runtime (pid {pid})"))),
        (Ok(ours), _, Ok(init)) if ours != init => Err(other("PID 1")),
        (Ok(_), Err(error), _) => {
            let why = format!("the runtime's (pid {pid}) cannot be read: {error}");
            Err(unread(error.kind() == io::ErrorKind::NotFound, &why))
        }
        // PID 1 may be hidden. The runtime's namespace is the one with the pods' mounts.
        (Ok(_), Ok(_), Ok(_) | Err(_)) => Ok(()),
    }
}

/// The agent is not in the namespace of this process.
fn other(process: &str) -> Problem {
    Problem::configuration(
        format!("this process is not in the mount namespace of {process}: what it unmounts would stay mounted there"),
        "run it on the host, without PrivateMounts=, PrivateTmp=, ProtectSystem= and the like in its unit",
    )
}

/// The namespaces cannot be compared.
fn unread(runtime_is_down: bool, why: &str) -> Problem {
    let (kind, remedy) = match runtime_is_down {
        true => (ProblemKind::Absent, "start the container runtime"),
        false => (
            ProblemKind::Configuration,
            "run the agent as root, with /proc of the host",
        ),
    };
    Problem {
        kind,
        what: format!("mount namespace: {why}"),
        remedy: remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> io::Result<PathBuf> {
        Err(io::Error::from(io::ErrorKind::PermissionDenied))
    }

    #[test]
    fn every_combination_is_judged() {
        let (a, b) = (|| Ok("mnt:[1]".into()), || Ok("mnt:[2]".into()));
        let ended = || Err(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(judge(7, a(), a(), a()), Ok(()));
        assert_eq!(judge(7, a(), a(), denied()), Ok(()));
        let cases = [
            ((a(), b(), a()), "PID 1 does not share"),
            (
                (a(), b(), b()),
                "not in the mount namespace of the container runtime (pid 7)",
            ),
            (
                (a(), b(), denied()),
                "not in the mount namespace of the container runtime (pid 7)",
            ),
            ((a(), a(), b()), "not in the mount namespace of PID 1"),
            ((a(), denied(), b()), "not in the mount namespace of PID 1"),
            ((a(), denied(), a()), "the runtime's (pid 7) cannot be read"),
            ((denied(), a(), a()), "the agent's cannot be read"),
            ((a(), denied(), denied()), "the runtime's (pid 7) cannot be read"),
        ];
        for ((ours, runtime, init), what) in cases {
            let problem = judge(7, ours, runtime, init).unwrap_err();
            assert_eq!(problem.kind, ProblemKind::Configuration);
            assert!(problem.what.contains(what), "{problem:?}");
        }
        assert_eq!(judge(7, a(), ended(), a()).unwrap_err().kind, ProblemKind::Absent);
    }

    #[tokio::test]
    async fn listener_in_the_own_namespace_is_recognized() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("cri.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let pid = peer(&socket).await.unwrap();
        assert_eq!(u32::try_from(pid), Ok(std::process::id()));
        let ours = namespace(Path::new("/proc"), "self").unwrap();
        assert_eq!(namespace(Path::new("/proc"), &pid.to_string()).unwrap(), ours);
    }

    #[tokio::test]
    async fn socket_without_listener_means_runtime_down() {
        let temp = tempfile::tempdir().unwrap();
        let left = temp.path().join("cri.sock");
        testbed::host_files::stale_socket(&left).unwrap();
        for socket in [&*left, Path::new("/no/such/socket")] {
            let problem = check(Path::new("/proc"), socket).await.unwrap_err();
            assert_eq!(problem.kind, ProblemKind::Absent);
            assert!(problem.what.contains(socket.to_str().unwrap()), "{problem:?}");
        }
    }
}
