//! When a kubelet sweeps: once a minute it removes sandboxes and containers that are dead, and log directories of nobody.
//! Where that comes between the last stop of a pod and its last status, a pod without containers loses its address (and
//! what that kubelet leaves differs from one time to the next).

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

const PERIOD: Duration = Duration::from_secs(60);
/// What pods without containers need for their ends, and a machine under load.
const MARGIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(300);

/// Watches for them.
pub struct Sweeps {
    last: watch::Receiver<Option<Instant>>,
    _watching: JoinSet<()>,
}

// === impl Sweeps ===

impl Sweeps {
    /// Puts a log directory of nobody among the others, again each time that it is swept away.
    pub fn watch(pod_logs: &Path) -> Result<Self> {
        let nobodys = pod_logs.join("testbed_nobody_00000000-0000-4000-8000-000000000000");
        fs::create_dir(&nobodys).with_context(|| format!("create {}", nobodys.display()))?;
        let (swept, last) = watch::channel(None);
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            loop {
                sleep(POLL).await;
                // Where it was swept away.
                if fs::create_dir(&nobodys).is_ok() {
                    swept.send_replace(Some(Instant::now()));
                }
            }
        });
        Ok(Self {
            last,
            _watching: watching,
        })
    }

    /// The next one is not near.
    pub fn leave_time(&self) -> bool {
        self.last.borrow().is_some_and(|last| last.elapsed() < PERIOD - MARGIN)
    }
}
