//! The clients of CSI and DRA drivers on real sockets: registrations, requests, answers, errors and missing answers.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod csi;
mod dra;
mod registry;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pod_teardown::node::plugins::Registry;
use pod_teardown::{model::blocked::Blocked, node::effects::Effects};
use tempfile::TempDir;

/// A private kubelet root directory.
struct Root(TempDir);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Effects with a gate, and the flag that shuts it.
fn gated() -> (Effects, Arc<AtomicBool>) {
    let shut = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&shut);
    let gate = move || match seen.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Blocked::Other("a kubelet is here".to_owned())),
    };
    (Effects::new(Arc::new(gate)), shut)
}

// === impl Root ===

impl Root {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    fn registry(&self) -> PathBuf {
        self.path().join("plugins_registry")
    }

    async fn read(&self) -> Registry {
        Registry::read(&self.registry(), &Effects::ungated()).await.unwrap()
    }
}

/// Sets a socket's creation time, in seconds of a fake clock.
fn made_at(socket: &Path, seconds: i64) {
    use nix::{
        fcntl::AT_FDCWD,
        sys::{
            stat::{UtimensatFlags, utimensat},
            time::TimeSpec,
        },
    };
    let time = TimeSpec::new(seconds, 0);
    utimensat(AT_FDCWD, socket, &time, &time, UtimensatFlags::FollowSymlink).unwrap();
}
