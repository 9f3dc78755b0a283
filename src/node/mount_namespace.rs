//! Compares the agent's mount namespace with the runtime's: an unmount in another one has no effect there.

use std::{fmt, fs, io, os::unix::fs::MetadataExt, path::Path};

use tokio::net::UnixStream;

/// Result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountNamespace {
    /// The same as the runtime's, and PID 1's as far as readable.
    Ok,
    /// Different from this process's.
    Other(NamespaceOwner),
    /// The runtime does not listen at the moment, for this reason.
    RuntimeDown(String),
    /// It cannot be determined, for this reason.
    Unknown(String),
}

/// A process whose mount namespace differs from the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceOwner {
    /// The container runtime.
    Runtime {
        /// Its process id.
        pid: i32,
    },
    /// The container runtime, in a namespace that PID 1 does not share, as with OpenShift's kubens.
    IsolatedRuntime {
        /// Its process id.
        pid: i32,
    },
    /// PID 1.
    Init,
}

/// Device and inode of a namespace.
type Namespace = (u64, u64);

impl fmt::Display for NamespaceOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runtime { pid } | Self::IsolatedRuntime { pid } => write!(f, "the container runtime (pid {pid})"),
            Self::Init => f.write_str("PID 1"),
        }
    }
}

/// Compares the agent's mount namespace with those of the process that listens on `cri_socket` and of PID 1.
pub async fn compare(proc: &Path, cri_socket: &Path) -> MountNamespace {
    let pid = match peer(cri_socket).await {
        Ok(pid) => pid,
        Err(error) => {
            let why = format!("the peer of {cri_socket:?} is not known: {error}");
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => MountNamespace::RuntimeDown(why),
                _ => MountNamespace::Unknown(why),
            };
        }
    };
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

fn namespace(proc: &Path, pid: &str) -> io::Result<Namespace> {
    let found = fs::metadata(proc.join(pid).join("ns/mnt"))?;
    Ok((found.dev(), found.ino()))
}

fn judge(
    pid: i32,
    ours: io::Result<Namespace>,
    runtime: io::Result<Namespace>,
    init: io::Result<Namespace>,
) -> MountNamespace {
    match (ours, runtime, init) {
        (Err(error), _, _) => MountNamespace::Unknown(format!("the agent's cannot be read: {error}")),
        (Ok(ours), Ok(runtime), Ok(init)) if ours != runtime && ours == init => {
            MountNamespace::Other(NamespaceOwner::IsolatedRuntime { pid })
        }
        (Ok(ours), Ok(runtime), _) if ours != runtime => MountNamespace::Other(NamespaceOwner::Runtime { pid }),
        (Ok(ours), _, Ok(init)) if ours != init => MountNamespace::Other(NamespaceOwner::Init),
        (Ok(_), Err(error), _) => {
            let why = format!("the runtime's (pid {pid}) cannot be read: {error}");
            match error.kind() {
                io::ErrorKind::NotFound => MountNamespace::RuntimeDown(why),
                _ => MountNamespace::Unknown(why),
            }
        }
        // PID 1 may be hidden. The runtime's namespace is the one with the pods' mounts.
        (Ok(_), Ok(_), Ok(_) | Err(_)) => MountNamespace::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> io::Result<Namespace> {
        Err(io::Error::from(io::ErrorKind::PermissionDenied))
    }

    #[test]
    fn every_combination_is_judged() {
        let (a, b) = (|| Ok((4, 1)), || Ok((4, 2)));
        let runtime = MountNamespace::Other(NamespaceOwner::Runtime { pid: 7 });
        assert_eq!(judge(7, a(), a(), a()), MountNamespace::Ok);
        assert_eq!(judge(7, a(), a(), denied()), MountNamespace::Ok);
        let apart = MountNamespace::Other(NamespaceOwner::IsolatedRuntime { pid: 7 });
        assert_eq!(judge(7, a(), b(), a()), apart, "as PID 1, which the runtime is not");
        assert_eq!(judge(7, a(), b(), b()), runtime);
        assert_eq!(judge(7, a(), b(), denied()), runtime);
        assert_eq!(judge(7, a(), a(), b()), MountNamespace::Other(NamespaceOwner::Init));
        assert_eq!(
            judge(7, a(), denied(), b()),
            MountNamespace::Other(NamespaceOwner::Init)
        );
        let ended = || Err(io::Error::from(io::ErrorKind::NotFound));
        assert!(matches!(judge(7, a(), ended(), a()), MountNamespace::RuntimeDown(_)));
        for unknown in [
            judge(7, a(), denied(), a()),
            judge(7, denied(), a(), a()),
            judge(7, a(), denied(), denied()),
        ] {
            assert!(matches!(unknown, MountNamespace::Unknown(_)), "{unknown:?}");
        }
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
            let found = compare(Path::new("/proc"), socket).await;
            assert!(
                matches!(&found, MountNamespace::RuntimeDown(why) if why.contains(socket.to_str().unwrap())),
                "{found:?}"
            );
        }
    }
}
